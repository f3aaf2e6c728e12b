"""Slow ranks and slow links, found in traces that are made with them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.trace.synthetic import make, messages
from wirewise.sim.diagnose import diagnose
from wirewise.sim.stragglers import compute_seconds, find_slow_host, find_straggler
from wirewise.sim.traces import replay_trace
from wirewise.trace import Header, Op, RankTrace, Trace, align


def aligned(**options):
    return align(make(**options).seen)


@pytest.mark.sweep
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
