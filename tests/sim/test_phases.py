"""Phases and collectives of recorded steps."""

import numpy as np
import pytest

from tests.trace.synthetic import make
from wirewise.errors import InputError
from wirewise.sim.phases import collective_seconds, phase_seconds, step_seconds


def test_phases_without_communication_fill_a_step():
    trace = make(ranks=2, steps=6, data_s=0.01).true
    phases, step = phase_seconds(trace), step_seconds(trace)
    assert phases["data"] == pytest.approx(np.full((2, 6), 0.01))
    assert set(phases) == {"data", "forward", "backward", "optimizer", "wait"}
    # The rest are the gaps of microseconds between ops.
    assert sum(phases.values()) == pytest.approx(step, rel=0.02)


def test_collectives_count_without_the_wait_for_late_ranks():
    rate = 250e6
    for slowdown in ({}, {1: 3.0}):
        trace = make(ranks=2, steps=6, bytes_per_s=rate, lag_s=0.0, slowdown=slowdown).true
        found = collective_seconds(trace)
        assert {name: len(own) for name, own in found.items()} == {
            "bucket 0": 6,
            "bucket 1": 6,
            "bucket 2": 6,
        }
        assert np.median(found["bucket 0"]) == pytest.approx(400_000 / rate + 1e-4, rel=0.1)


def test_a_rank_without_marks_is_named():
    trace = make(ranks=2, steps=4).true
    trace.ranks[1].ops = [op for op in trace.ranks[1].ops if op.kind != "step"]
    with pytest.raises(InputError, match="rank 1 has no mark of step 0"):
        step_seconds(trace)
