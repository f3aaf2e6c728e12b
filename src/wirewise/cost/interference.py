"""By how much compute slows down while the same rank communicates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["fit_interference", "slowed"]

_ROUNDS = 20
_LEAST_SPREAD = 0.05
_MOST_SLOWDOWN = 0.95


def slowed(own_s: NDArray[np.float64], overlap: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Seconds of ops that take `own_s` alone, when a share of the resulting time has communication beside it.

    Work goes on at 1 / factor of the speed in that share.
    """
    return own_s / (1.0 - overlap * (1.0 - 1.0 / factor))


def fit_interference(
    op: NDArray[np.int64], overlap: NDArray[np.float64], duration_s: NDArray[np.float64]
) -> float | None:
    """Factor of `slowed` that fits what ops took with more and with less communication beside them.

    The speed of an op, one over its seconds, is a line in the overlap with the same relative slope for all
    ops. Alternates between the ops' speeds alone and that slope; an op counts by the time that it takes, and
    disturbed samples count less (Huber's weights).

    Args:
        op: Which samples are of the same op, any whole numbers, [n].
        overlap: Share of the op's time with communication beside it, in [0, 1], [n].
        duration_s: Seconds that it took, [n].

    Returns:
        The factor, at least 1; None: no op ran both with more and with less communication beside it.

    Raises:
        InputError: Shares outside of [0, 1] or times that are negative or not finite.
    """
    if ((overlap < 0) | (overlap > 1)).any() or not np.isfinite(duration_s).all() or (duration_s < 0).any():
        raise InputError(
            "got an overlap outside of [0, 1] or a time that is not finite and >= 0; check the trace"
        )
    runs = duration_s > 0
    x, speed = overlap[runs], 1.0 / duration_s[runs]
    _, number = np.unique(op[runs], return_inverse=True)
    spread = np.sqrt(_mean(number, (x - _mean(number, x)) ** 2))
    useful = spread >= _LEAST_SPREAD
    if not useful.any():
        return None
    x, speed = x[useful], speed[useful]
    _, number = np.unique(number[useful], return_inverse=True)
    slope, weight = 0.0, np.ones(len(x))
    for _ in range(_ROUNDS):
        model = 1.0 - slope * x
        alone = _mean(number, speed * model, weight) / _mean(number, model * model, weight)
        relative = speed / alone
        error = np.abs(relative - model)
        limit = 1.345 * 1.4826 * float(np.median(error)) + 1e-12
        weight = np.minimum(1.0, limit / np.maximum(error, 1e-300)) / alone
        apart = x - _mean(number, x, weight)
        lost = float((weight * apart * -relative).sum() / (weight * apart * apart).sum())
        slope = min(max(lost, 0.0), _MOST_SLOWDOWN)
    return 1.0 / (1.0 - slope)


def _mean(
    number: NDArray[np.int64], values: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Weighted mean over the samples of the same op, for each sample."""
    weight = np.ones(len(values)) if weight is None else weight
    means: NDArray[np.float64] = np.bincount(number, weight * values) / np.bincount(number, weight)
    return means[number]
