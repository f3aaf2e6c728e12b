"""Result of planning buckets for a script."""

from __future__ import annotations

import msgspec

__all__ = ["DproResult"]


class DproResult(msgspec.Struct, frozen=True, kw_only=True):
    """Gain of a plan, predicted and measured."""

    sentence: str
    """Verdict on a step, as a sentence."""
    hosts: int = 1
    """Number of hosts of the Slurm allocation on which the command ran; 1 if the command started its ranks itself."""
    ranks: int
    measured_step_s: float
    """Measured step time of the recorded run, in seconds."""
    replayed_step_s: float
    error: float
    """Relative error, replayed / measured - 1."""
    predicted_step_s: float
    """Simulated seconds of a step under the plan."""
    predicted_gain: float
    """Fraction of the step that the plan saves, simulated."""
    present_step_s: list[float]
    """Measured step of each run without the plan, in seconds."""
    planned_step_s: list[float]
    """Measured step of each run with the plan, in seconds."""
    gain: float
    """Fraction of the step that the plan saves, measured: mean of pairs."""
    ci95: tuple[float, float]
    """Interval of the gain, by Student's t over pairs."""
    kept: bool
    """Whether the whole interval is above zero."""
    plan: str
    """File of the plan."""
