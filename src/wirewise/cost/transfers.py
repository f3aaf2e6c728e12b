"""Rates of links from the collectives of ordinary training steps, without a benchmark of their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wirewise.errors import InputError

__all__ = ["TransferCost", "TransferSample", "fit_transfers"]

_ROUNDS_OF_WEIGHTS = 5
_OUTLIER_DEVIATIONS = 3.0
_LEAST_OUTLIER = 1e-3
_NO_LATENCY = 1e-4


class TransferSample(NamedTuple):
    """A collective as seen on aligned clocks."""

    start_s: float
    """When the last rank came."""
    end_s: float
    """When the last rank was done."""
    wire_bytes: float
    """Bytes on the busiest interface."""
    rounds: int
    """How often in a row the latency is paid."""


class TransferCost(NamedTuple):
    """Seconds = latency_s * rounds + wire_bytes / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float
    samples: int
    """Busy periods that the fit kept."""
    outliers: int


def fit_transfers(samples: list[TransferSample]) -> TransferCost:
    """Fit latency and bandwidth to collectives, also to those that overlap.

    Collectives that overlap in time share the links, so their union counts as one: its bytes are the sum of
    theirs, its rounds those of the one with the most. Non-negative least squares on relative errors, repeated
    without what lies further than 3 median absolute deviations. Where all unions are alike, so that latency and
    bandwidth cannot be told apart, all is charged to the bandwidth.

    Raises:
        InputError: No sample, or one that ends before it starts or is not finite.
    """
    if not samples:
        raise InputError("got no collective between hosts; record steps that communicate, or give the links")
    for number, sample in enumerate(samples):
        if not np.isfinite(sample).all() or sample.end_s < sample.start_s or sample.wire_bytes < 0:
            raise InputError(
                f"collective {number} goes from {sample.start_s} s to {sample.end_s} s with "
                f"{sample.wire_bytes} bytes; expected finite times in order: align the clocks of the ranks"
            )
    table = _busy_periods(samples)
    rounds, size, seconds = table[:, 0], table[:, 1], table[:, 2]
    scale = np.maximum(seconds, 1e-9)
    kept = np.ones(len(table), dtype=bool)
    cost = np.zeros(2)
    for _ in range(_ROUNDS_OF_WEIGHTS):
        cost = _solve(rounds[kept] / scale[kept], size[kept] / scale[kept])
        residual = (table[:, :2] @ cost - seconds) / scale
        middle = float(np.median(residual[kept]))
        spread = 1.4826 * float(np.median(np.abs(residual[kept] - middle)))
        now = np.abs(residual - middle) <= _OUTLIER_DEVIATIONS * spread + _LEAST_OUTLIER
        if (now == kept).all():
            break
        kept = now
    latency, per_byte = cost.tolist()
    bandwidth = 1.0 / per_byte if per_byte > 0 else np.inf
    return TransferCost(latency, bandwidth, int(kept.sum()), int((~kept).sum()))


def _solve(rounds: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Non-negative (latency, seconds per byte) for seconds that are scaled to 1."""
    columns = np.stack([rounds, size], axis=1)
    # The columns differ by many orders of magnitude.
    norm = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    bounded = np.concatenate([columns / norm, [[_NO_LATENCY, 0.0]]])
    found: NDArray[np.float64] = nnls(bounded, np.append(np.ones(len(rounds)), 0.0))[0] / norm
    return found


def _busy_periods(samples: list[TransferSample]) -> NDArray[np.float64]:
    """(rounds, bytes, seconds) of each union of overlapping collectives, [periods, 3]."""
    periods: list[list[float]] = []
    begin = until = -np.inf
    for sample in sorted(samples):
        if sample.start_s >= until:
            begin, until = sample.start_s, sample.end_s
            periods.append([float(sample.rounds), sample.wire_bytes, until - begin])
            continue
        until = max(until, sample.end_s)
        last = periods[-1]
        last[:] = [max(last[0], float(sample.rounds)), last[1] + sample.wire_bytes, until - begin]
    return np.array(periods)
