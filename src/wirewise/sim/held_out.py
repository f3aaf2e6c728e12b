"""Prediction error on held-out steps of the same trace."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from wirewise.errors import WirewiseError
from wirewise.sim.steps import replay_steps
from wirewise.sim.traces import record
from wirewise.trace.records import RankTrace, Trace

__all__ = ["held_out_error"]

_LEAST_STEPS = 6
"""Fewer steps leave halves of less than three, of which a mean says little."""


def held_out_error(trace: Trace) -> float | None:
    """Mean absolute error of two predictions, each fitted to one half of the steps and tested on the other.

    Links, interference and durations come from one half, the measured step from the other. The error therefore
    includes both the replay's error and the variation of steps.

    Args:
        trace: Trace on aligned clocks.

    Returns:
        Error as a fraction of the measured step. None if the trace has fewer than six steps, or a half cannot be
        replayed.
    """
    numbers = trace.steps()
    if len(numbers) < _LEAST_STEPS:
        return None
    middle = len(numbers) // 2
    halves = [_part(trace, set(own)) for own in (numbers[:middle], numbers[middle:])]
    try:
        first, second = (
            replay_steps(h.steps, h.links, interference=h.interference) for h in map(record, halves)
        )
    except WirewiseError:
        return None
    pairs = ((first, second), (second, first))
    errors = [abs(known.predicted_step_s / other.measured_step_s - 1) for known, other in pairs]
    return sum(errors) / len(errors)


def _part(trace: Trace, steps: Collection[int]) -> Trace:
    """The trace with ops of some steps only."""
    ranks = [
        RankTrace(rank.header, [op for op in rank.ops if op.step in steps], rank.complete)
        for rank in trace.ranks
    ]
    return msgspec.structs.replace(trace, ranks=ranks)
