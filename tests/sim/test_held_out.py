"""Errors of predictions in steps that they have not seen."""

import msgspec
import pytest

from tests.trace.synthetic import make
from wirewise.sim.held_out import held_out_error
from wirewise.trace import align
from wirewise.trace.records import RankTrace


def test_steps_that_are_alike_are_predicted_from_each_other():
    assert held_out_error(align(make(ranks=2, steps=10, jitter=0.01).seen)) < 0.02


def test_a_job_that_gets_slower_is_not_predicted_by_its_first_half():
    trace = align(make(ranks=2, steps=10, jitter=0.01).seen)
    slow = msgspec.structs.replace(
        trace, ranks=[RankTrace(r.header, [_stretched(op) for op in r.ops]) for r in trace.ranks]
    )
    # The second half takes twice as long: it is predicted half of it, and the first half twice.
    assert held_out_error(slow) == pytest.approx((0.5 + 1.0) / 2, rel=0.1)


def _stretched(op, since=4):
    if op.step <= since:
        return op
    at = 100.5
    times = {
        name: at + 2 * (getattr(op, name) - at)
        for name in ("start_s", "end_s", "enqueued_s")
        if getattr(op, name) >= 0
    }
    return msgspec.structs.replace(op, **times)


def test_few_steps_tell_nothing():
    assert held_out_error(align(make(ranks=2, steps=5).seen)) is None
