"""Confidence intervals of what was measured: of the gain of a variant, and of resampled values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

__all__ = ["Gain", "gain_of", "percentiles95"]


class Gain(NamedTuple):
    """What a variant saves, from pairs of measurements next to each other."""

    mean: float
    ci95: tuple[float, float]
    """Interval of the mean that covers it in 95 of 100 cases."""

    @property
    def kept(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.ci95[0] > 0


def gain_of(savings: ArrayLike) -> Gain:
    """Mean of pairwise savings, and its interval by Student's t.

    Args:
        savings: Saving of each pair, [pairs], at least two, in seconds or as a share.
    """
    values = np.asarray(savings, dtype=np.float64)
    count, mean = len(values), float(values.mean())
    half = float(stdtrit(count - 1, 0.975) * values.std(ddof=1) / np.sqrt(count))
    return Gain(mean, (mean - half, mean + half))


def percentiles95(draws: ArrayLike) -> tuple[float, float]:
    """Interval that holds 95 % of the resampled values of a bootstrap."""
    low, high = np.percentile(np.asarray(draws, dtype=np.float64), [2.5, 97.5]).tolist()
    return low, high
