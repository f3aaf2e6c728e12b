"""What is judged: a job that was predicted, and carried out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that were predicted and measured."""

    predicted_s: float
    """Seconds that `wirewise.sim` predicts."""
    quartiles_s: tuple[float, float, float]
    """Measured on the slowest rank: the median between the quartiles of repeats."""

    @property
    def measured_s(self) -> float:
        """The median."""
        return self.quartiles_s[1]

    @property
    def error(self) -> float:
        """Above 0: predicted to take longer than it does."""
        return self.predicted_s / self.measured_s - 1.0


class Setting(Judged, frozen=True, kw_only=True):
    """One plan of one job on one network."""

    family: str
    where: str
    """Job and network."""
    plan: str


def quartiles_of(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of repeats, the median between them."""
    low, median, high = np.percentile(seconds, [25, 50, 75]).tolist()
    return low, median, high
