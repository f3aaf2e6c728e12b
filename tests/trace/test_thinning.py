"""Long traces keep steps that are spread evenly, whole on all ranks."""

from __future__ import annotations

import msgspec

from tests.trace.synthetic import make
from wirewise.sim.traces import replay_trace
from wirewise.trace.align import align
from wirewise.trace.records import Op
from wirewise.trace.thinning import thin_steps


def test_few_ops_stay_as_they_are():
    trace = make(ranks=2, steps=5).true
    assert thin_steps(trace, sum(len(rank.ops) for rank in trace.ranks)) is trace


def test_steps_are_spread_evenly_and_whole():
    trace = make(ranks=3, steps=21).true
    ops = sum(len(rank.ops) for rank in trace.ranks)
    short = thin_steps(trace, ops // 4)
    assert short.steps() == [0, 5, 10, 15, 20]
    assert all(short.of(rank, 10) == trace.of(rank, 10) for rank in range(3))
    assert short.notes == [
        f"5 of 21 steps are replayed, spread evenly over the run, as the trace has {ops:,} ops"
    ]
    assert len(trace.steps()) == 21 and thin_steps(trace, 1).steps() == [0]


def test_waits_in_later_steps_stay_with_their_collectives():
    trace = make(ranks=2, steps=8).true
    for rank in trace.ranks:
        # The last bucket of each step is waited for in the next one.
        rank.ops = [later(op) if op.kind == "wait" and op.name == "bucket 2" else op for op in rank.ops]
    short = thin_steps(trace, sum(len(rank.ops) for rank in trace.ranks) // 4)
    waits = [op for op in short.ranks[0].ops if op.kind == "wait" and op.name == "bucket 2"]
    assert [(op.step, op.seq // 3) for op in waits if op.seq // 3 in short.steps()] == [
        (step + 1, step) for step in short.steps()
    ]


def later(op: Op) -> Op:
    return msgspec.structs.replace(op, step=op.step + 1)


def test_a_thinned_trace_is_replayed_as_the_whole_one():
    trace = align(make(ranks=3, steps=20, jitter=0.0, lag_s=1e-6).true)
    whole, short = (replay_trace(one).predicted_step_s for one in (trace, thin_steps(trace, 100)))
    assert abs(short / whole - 1) < 0.02
