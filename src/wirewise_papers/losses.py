"""Smoothing of training losses for charts and verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["SMOOTHING", "smooth"]

SMOOTHING = 5
"""Steps of the moving average of the training loss, as in the final loss."""


def smooth(losses: Sequence[float]) -> list[float]:
    """Moving average of the losses; NaN if a loss in the window is not finite."""
    return [_mean(losses[max(0, i - SMOOTHING + 1) : i + 1]) for i in range(len(losses))]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if all(map(math.isfinite, values)) else math.nan
