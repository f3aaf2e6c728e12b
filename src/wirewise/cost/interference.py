"""Slowdown of compute while the same rank communicates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["fit_interference", "slowed_s"]

_ROUNDS = 15
_SWEEPS = 10
_LEAST_SPREAD = 0.05
_MOST_SLOWDOWN = 0.95


def slowed_s(own_s: NDArray[np.float64], overlap: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Time of ops that take `own_s` alone, if a fraction of the resulting time overlaps with communication.

    During the overlap, compute runs at 1 / factor of its speed.
    """
    return own_s / (1.0 - overlap * (1.0 - 1.0 / factor))


def fit_interference(
    op: NDArray[np.int64],
    overlap: NDArray[np.float64],
    duration_s: NDArray[np.float64],
    context: NDArray[np.int64] | None = None,
) -> float | None:
    """Fit the factor of `slowed_s` to times of ops with more and with less overlapping communication.

    log seconds = own(op) + slow(context) - log(1 - overlap * (1 - 1 / factor)), by the Gauss-Newton method; ops are
    weighted by their time, and outliers down-weighted (Huber). The context matters: a rank that is slow in a step has
    other overlaps than its peers, without being slow because of them.

    Args:
        op: Op index of each sample, any integers, [n].
        overlap: Fraction of the op's time that overlaps with communication, in [0, 1], [n].
        duration_s: Duration of each sample in seconds, [n].
        context: Index of a group of samples with a common speed, such as a rank in a step, [n]. Defaults to one
            group.

    Returns:
        The factor, at least 1. None if no op ran both with more and with less overlap.

    Raises:
        InputError: Fractions are outside of [0, 1], or times are negative or not finite.
    """
    if ((overlap < 0) | (overlap > 1)).any() or not np.isfinite(duration_s).all() or (duration_s < 0).any():
        raise InputError(
            "got an overlap outside of [0, 1] or a time that is not finite and >= 0; check the trace"
        )
    runs = duration_s > 0
    x, seconds = overlap[runs], duration_s[runs]
    _, number = np.unique(op[runs], return_inverse=True)
    _, place = np.unique(np.zeros(len(x)) if context is None else context[runs], return_inverse=True)
    even = np.ones(len(x))
    if not (np.sqrt(_mean(number, (x - _mean(number, x, even)) ** 2, even)) >= _LEAST_SPREAD).any():
        return None
    slope, weight = 0.0, seconds
    for _ in range(_ROUNDS):
        rest = 1.0 - slope * x
        error = _apart(np.log(seconds) + np.log(rest), number, place, weight)
        change = _apart(x / rest, number, place, weight)
        known = float((weight * change * change).sum())
        if known <= 0.0:
            # Ranks and steps explain all differences.
            return None
        slope += float((weight * change * error).sum()) / known
        slope = min(max(slope, 0.0), _MOST_SLOWDOWN)
        limit = 1.345 * 1.4826 * float(np.median(np.abs(error))) + 1e-12
        weight = seconds * np.minimum(1.0, limit / np.maximum(np.abs(error), 1e-300))
    return 1.0 / (1.0 - slope)


def _apart(
    values: NDArray[np.float64], op: NDArray[np.int64], place: NDArray[np.int64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Residual that neither the op nor the context explains."""
    for _ in range(_SWEEPS):
        values = values - _mean(op, values, weight)
        values = values - _mean(place, values, weight)
    return values


def _mean(
    number: NDArray[np.int64], values: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weighted mean over the samples with the same number, for each sample."""
    means: NDArray[np.float64] = np.bincount(number, weight * values) / np.bincount(number, weight)
    return means[number]
