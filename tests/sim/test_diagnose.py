"""What bounds a step, on traces whose bound is known."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tests.trace.synthetic import make
from wirewise.sim.analysis import WHAT_IFS, analyse, critical_ops
from wirewise.sim.diagnose import _bound, _bound_words, diagnose, straggler_gone, words
from wirewise.sim.stragglers import compute_seconds, find_slow_host, find_straggler
from wirewise.sim.traces import replay_trace
from wirewise.trace import Header, Op, RankTrace, Trace, align

SMALL = (4_000, 40_000, 20_000)
HEAVY = (400_000, 40_000_000, 20_000_000)


def aligned(**options):
    return align(make(**options).seen)


@pytest.mark.parametrize("seed", range(10))
def test_the_slow_rank_is_named(seed):
    draw = np.random.default_rng(100 + seed)
    ranks = int(draw.integers(2, 9))
    slow, factor = int(draw.integers(ranks)), float(draw.uniform(1.15, 2.0))
    trace = aligned(ranks=ranks, slowdown={slow: factor}, clock_s=3.0, drift=1e-5, seed=seed)
    found = find_straggler(trace)
    assert found.rank == slow
    assert found.factor == pytest.approx(factor, rel=0.05)
    report = replay_trace(trace)
    assert diagnose(trace, report, {}).straggler_rank == slow


@pytest.mark.parametrize("seed", range(10))
def test_ranks_that_are_alike_have_no_straggler(seed):
    assert find_straggler(aligned(ranks=2 + seed % 5, seed=seed)) is None


def test_one_slow_step_makes_no_straggler():
    run = make(ranks=4)
    ops = run.true.ranks[2].ops
    late = next(i for i, op in enumerate(ops) if op.kind == "forward" and op.step == 7)
    ops[late] = msgspec.structs.replace(ops[late], start_s=ops[late].start_s - 0.5)
    assert find_straggler(run.true) is None


def test_of_two_slow_ranks_the_slower_one_is_named():
    assert find_straggler(aligned(ranks=4, slowdown={1: 1.3, 3: 1.6})).rank == 3


def test_nested_ops_count_once():
    ops = [
        Op(name="model", kind="forward", start_s=0.0, end_s=1.0, step=0),
        Op(name="layer", kind="forward", start_s=0.2, end_s=0.8, step=0),
        Op(name="late", kind="data", start_s=1.0, end_s=5.0, step=0),
    ]
    header = Header(rank=0, world_size=1, host="a", groups={})
    assert compute_seconds(Trace([RankTrace(header, ops)], aligned=True)) == pytest.approx(np.array([[1.0]]))


BOUNDS = {
    "network": {"sizes": HEAVY},
    "compute": {"sizes": SMALL},
    "straggler": {"sizes": SMALL, "slowdown": {1: 1.8}},
    "data": {"sizes": SMALL, "data_s": 0.08},
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bound_is_named(bound):
    found = analyse(aligned(ranks=4, steps=8, **BOUNDS[bound])).diagnosis
    assert found.bound == bound
    start = {"network": "The network", "compute": "Compute", "straggler": "Rank 1", "data": "Loading data"}[
        bound
    ]
    assert found.sentence.startswith(f"{start} bounds the step")
    assert 0.15 <= found.share <= 1.0


def test_the_best_change_is_one_that_can_be_had():
    found = analyse(aligned(ranks=4, steps=8, sizes=HEAVY))
    assert found.diagnosis.best_change == "bandwidth=*:x2"
    after = next(row for row in found.what_ifs if row.change == "bandwidth=*:x2").prediction
    saved = found.report.predicted_step_s - after.predicted_step_s
    assert found.diagnosis.gain_s == pytest.approx(saved)
    assert "links at 2 times the rate" in found.diagnosis.sentence


def test_a_straggler_is_told_to_keep_up():
    trace = aligned(ranks=4, steps=8, sizes=SMALL, slowdown={1: 1.8})
    found = analyse(trace)
    assert found.diagnosis.best_change == straggler_gone(find_straggler(trace))
    assert "if it were as fast as they are" in found.diagnosis.sentence
    assert found.diagnosis.sentence.endswith("No other change tried gives more.")
    # Forward, backward and optimizer are 85 % of the 0.1 s; 1.8 times that is 0.8 * 85 ms more.
    assert found.diagnosis.gain_s == pytest.approx(0.8 * 0.085, rel=0.1)


def messages(seconds_to: dict[tuple[int, int], float], rates: dict[int, float] | None = None) -> Trace:
    """Five steps in which pairs of three hosts exchange a megabyte."""
    ops: list[list[Op]] = [[] for _ in range(3)]
    for step in range(5):
        for rank in range(3):
            at = float(step)
            ops[rank].append(Op(name="step", kind="step", start_s=at, end_s=at + 1, step=step))
        for (a, b), seconds in seconds_to.items():
            for rank, peer, what in ((a, b, "send"), (b, a, "recv")):
                ops[rank].append(
                    Op(name=what, kind="communication", start_s=step + 0.1, end_s=step + 0.1 + seconds, step=step,
                       group="all", collective=what, size_bytes=10**6, peer=peer)
                )  # fmt: skip
    headers = [
        Header(rank=r, world_size=3, host=f"h{r}", groups={"all": [0, 1, 2]},
               link_bytes_per_s=(rates or {}).get(r, 0.0))
        for r in range(3)
    ]  # fmt: skip
    return Trace([RankTrace(h, o) for h, o in zip(headers, ops, strict=True)], aligned=True)


def test_the_host_behind_the_slow_link_is_named():
    assert find_slow_host(messages({(0, 1): 0.01, (1, 2): 0.05, (2, 0): 0.05})) == "h2"
    assert find_slow_host(messages({(0, 1): 0.05, (1, 2): 0.05, (2, 0): 0.01})) == "h1"


def test_links_that_are_alike_name_no_host():
    assert find_slow_host(messages({(0, 1): 0.01, (1, 2): 0.011, (2, 0): 0.012})) is None
    # A collective of all hosts cannot tell.
    assert find_slow_host(aligned(ranks=4)) is None


def test_rates_of_the_headers_tell_where_transfers_do_not():
    run = make(ranks=3)
    for rank, rate in enumerate((1e8, 1e8, 2e7)):
        header = run.true.ranks[rank].header
        run.true.ranks[rank].header = msgspec.structs.replace(header, link_bytes_per_s=rate)
    assert find_slow_host(run.true) == "host2"


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


def test_buckets_of_a_traced_job_can_be_changed():
    trace = aligned(ranks=4, steps=8, sizes=(400_000, 4_000_000, 2_000_000))
    after = {mb: replay_trace(trace, what_if=f"bucket_mb={mb}").what_if for mb in (1, 100)}
    before = replay_trace(trace)
    # A first bucket of 1 MiB closes with the second gradient of the trace; never more than as many transfers.
    assert after[1].breakdown.compute_s == pytest.approx(before.breakdown.compute_s, rel=0.02)
    assert after[1].predicted_step_s >= before.predicted_step_s


def test_the_critical_path_ends_with_the_step():
    trace = aligned(ranks=4, steps=3)
    found = {trace.ranks[rank].ops[place] for rank, place in critical_ops(trace)}
    assert {op.step for op in found} == {0, 1, 2}
    assert {op.kind for op in found} >= {"optimizer", "communication", "backward"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("bandwidth=*:x2", "links at 2 times the rate"),
        ("bandwidth=3:x0.5", "the link of host 3 at 0.5 times the rate"),
        ("bandwidth=200mbit", "bandwidth=200mbit"),
        ("bucket_mb=25", "gradient buckets of 25 MiB"),
        ("straggler=2:x0.5", "rank 2 as fast as the others"),
        ("no_communication", "communication that takes no time"),
        ("scale=forward:x0.5", "scale=forward:x0.5"),
    ],
)
def test_changes_in_plain_words(change, said):
    assert words(change) == said


def test_links_are_not_changed_where_all_ranks_share_a_host():
    run = make(ranks=2, steps=3)
    for rank in run.true.ranks:
        rank.header = msgspec.structs.replace(rank.header, host="one")
    found = analyse(run.true)
    assert not any(row.change.startswith(("bandwidth", "latency")) for row in found.what_ifs)
    assert found.link_sensitivity == []


@pytest.mark.parametrize(
    ("compute", "unknown", "bound", "told"),
    [
        (0.6, 0.3, "compute", "Compute bounds the step: it fills 60 % of 1.00 s."),
        (0.02, 0.98, "unknown", "Nothing recorded fills 98 % of 1.00 s."),
        (
            0.3,
            0.1,
            "wait",
            "Communication and waiting bound the step: without compute beside them they fill 60 %",
        ),
    ],
)
def test_what_fills_most_of_a_step_bounds_it_where_no_change_gives_much(compute, unknown, bound, told):
    report = SimpleNamespace(predicted_step_s=1.0, breakdown=SimpleNamespace(compute_s=compute))
    found, share = _bound(report, {}, None, unknown)
    assert found == bound
    assert _bound_words(found, share, 1.0, None).startswith(told)
