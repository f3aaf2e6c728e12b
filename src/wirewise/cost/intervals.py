"""Confidence intervals of measurements: of a variant's gain, and of resampled values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Gain", "gain_of", "median95", "percentiles95", "ratio95"]

_RESAMPLES = 2000


class Gain(NamedTuple):
    """Gain of a variant, from pairs of interleaved measurements."""

    mean: float
    ci95: tuple[float, float]
    """95 % confidence interval of the mean."""

    @property
    def kept(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.ci95[0] > 0


def gain_of(savings: ArrayLike) -> Gain:
    """Mean of paired savings, and its 95 % interval by Student's t.

    Args:
        savings: Saving of each pair, [pairs], at least two, in seconds or as a fraction.
    """
    # Loading scipy takes 0.3 s, and reports of traces need only percentiles.
    from scipy.special import stdtrit

    values = np.asarray(savings, dtype=np.float64)
    count, mean = len(values), float(values.mean())
    half = float(stdtrit(count - 1, 0.975) * values.std(ddof=1) / np.sqrt(count))
    return Gain(mean, (mean - half, mean + half))


def percentiles95(draws: ArrayLike) -> tuple[float, float]:
    """Interval that contains 95 % of the resampled values of a bootstrap."""
    low, high = np.percentile(np.asarray(draws, dtype=np.float64), [2.5, 97.5]).tolist()
    return low, high


def median95(values: ArrayLike) -> tuple[float, float]:
    """95 % interval of a median, by bootstrap over the values."""
    known = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).choice(known, (_RESAMPLES, len(known)))
    return percentiles95(np.median(draws, axis=1))


def ratio95(values: ArrayLike, others: ArrayLike) -> tuple[float, float]:
    """95 % interval of the ratio of two medians, by bootstrap over both sets of values."""
    draw = np.random.default_rng(0)
    medians = [
        np.median(draw.choice(np.asarray(known), (_RESAMPLES, len(np.asarray(known)))), axis=1)
        for known in (values, others)
    ]
    return percentiles95(medians[0] / medians[1])
