"""Analyses of whole traces, and the changes that they try."""

from __future__ import annotations

import msgspec

from tests.trace.synthetic import make, messages
from wirewise.sim.analysis import WHAT_IFS, analyse, critical_ops
from wirewise.trace import align


def aligned(**options):
    return align(make(**options).seen)


def test_a_change_that_does_not_fit_is_kept_with_the_reason():
    trace = messages({(0, 1): 0.01, (1, 2): 0.05, (2, 0): 0.05})
    rows = {row.change: row for row in analyse(trace).what_ifs}
    assert rows.keys() >= set(WHAT_IFS)
    assert rows["bucket_mb=5"].prediction is None
    assert "found 0 all-reduces" in rows["bucket_mb=5"].refused
    assert rows["bandwidth=*:x2"].prediction is not None


def test_a_trace_of_one_rank_has_no_network_and_no_straggler():
    found = analyse(aligned(ranks=1, steps=5)).diagnosis
    assert (found.bound, found.straggler_rank, found.slow_link_host) == ("compute", None, None)


def test_the_critical_path_ends_with_the_step():
    trace = aligned(ranks=4, steps=3)
    found = {trace.ranks[rank].ops[place] for rank, place in critical_ops(trace)}
    assert {op.step for op in found} == {0, 1, 2}
    assert {op.kind for op in found} >= {"optimizer", "communication", "backward"}


def test_links_are_not_changed_where_all_ranks_share_a_host():
    run = make(ranks=2, steps=3)
    for rank in run.true.ranks:
        rank.header = msgspec.structs.replace(rank.header, host="one")
    found = analyse(run.true)
    assert not any(row.change.startswith(("bandwidth", "latency")) for row in found.what_ifs)
    assert found.link_sensitivity == []
