"""Bandwidths of links, from the collectives of ordinary training steps, without a separate benchmark."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["TransferCost", "TransferSample", "fit_transfers"]

_ROUNDS_OF_WEIGHTS = 5
_OUTLIER_DEVIATIONS = 3.0
_LEAST_OUTLIER = 1e-3
_NO_LATENCY = 1e-4
_ALIKE = 1e-2
"""How much it counts, in samples, that collectives drive a link alike."""


class TransferSample(NamedTuple):
    """Collective on aligned clocks: its times, bytes and rounds."""

    start_s: float
    """Time at which the last rank arrived."""
    end_s: float
    """Time at which the last rank finished."""
    wire_bytes: float
    """Bytes on the busiest interface."""
    rounds: int
    """Number of latencies in series."""
    collective: str = ""
    """Name of the collective; the fit has one `burden` for each."""
    alone: bool = False
    """Whether the time of overlapping transfers was already subtracted."""


class TransferCost(NamedTuple):
    """Transfer time: seconds = latency_s * rounds + burden * wire_bytes / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float
    samples: int
    """Number of busy periods that the fit kept."""
    outliers: int
    burden: dict[str, float]
    """Effective bytes on the link per byte of each collective, at least 1; 1 for the collective that uses the link
    best."""


def fit_transfers(samples: list[TransferSample], *, most_latency_s: float = np.inf) -> TransferCost:
    """Fit latency and bandwidth to collectives, including overlapping ones.

    Collectives that overlap in time share the links, so their union counts as one: its bytes are the sum of theirs,
    its rounds those of the one with the most. Non-negative least squares on relative errors, repeated without
    outliers beyond 3 median absolute deviations. If all unions are alike, so that latency and bandwidth cannot be
    separated, all is charged to the bandwidth.

    Args:
        samples: All collectives of some ranks.
        most_latency_s: Known upper bound on the latency, in seconds.

    Raises:
        InputError: There is no sample, or one ends before it starts or is not finite.
    """
    if not samples:
        raise InputError("got no collective between hosts; record steps that communicate, or give the links")
    for number, sample in enumerate(samples):
        if not np.isfinite(sample[:4]).all() or sample.end_s < sample.start_s or sample.wire_bytes < 0:
            raise InputError(
                f"collective {number} goes from {sample.start_s} s to {sample.end_s} s with "
                f"{sample.wire_bytes} bytes; expected finite times in order: align the clocks of the ranks"
            )
    kinds = sorted({sample.collective for sample in samples})
    table = _busy_periods(samples, kinds)
    seconds, columns = table[:, -1], table[:, :-1]
    scale = np.maximum(seconds, 1e-9)
    kept = np.ones(len(table), dtype=bool)
    cost = np.zeros(1 + len(kinds))
    for _ in range(_ROUNDS_OF_WEIGHTS):
        cost = _solve(columns[kept] / scale[kept, None], most_latency_s)
        residual = (columns @ cost - seconds) / scale
        middle = float(np.median(residual[kept]))
        spread = 1.4826 * float(np.median(np.abs(residual[kept] - middle)))
        now = np.abs(residual - middle) <= _OUTLIER_DEVIATIONS * spread + _LEAST_OUTLIER
        if (now == kept).all():
            break
        kept = now
    latency, per_byte = float(cost[0]), cost[1:]
    least = float(per_byte[per_byte > 0].min(initial=np.inf))
    burden = {kind: max(each / least, 1.0) for kind, each in zip(kinds, per_byte.tolist(), strict=True)}
    return TransferCost(
        latency, 1.0 / least if least < np.inf else np.inf, int(kept.sum()), int((~kept).sum()), burden
    )


def _solve(columns: NDArray[np.float64], most_latency_s: float) -> NDArray[np.float64]:
    """Non-negative (latency, seconds per byte of each kind) for seconds that are scaled to 1."""
    # Ranks load this module for what was fitted before, and should not wait for the solvers.
    from scipy.optimize import nnls

    # The columns differ by many orders of magnitude.
    norm = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    norm[1:] = norm[1:].max(initial=1e-300)
    kinds = columns.shape[1] - 1
    no_latency = np.eye(1, 1 + kinds) * _NO_LATENCY
    # Kinds that are never seen apart from each other count as alike.
    alike = np.concatenate([np.zeros((kinds, 1)), np.eye(kinds) - 1.0 / max(kinds, 1)], axis=1) * _ALIKE
    rows = np.concatenate([columns / norm, no_latency, alike])
    wanted = np.concatenate([np.ones(len(columns)), np.zeros(len(rows) - len(columns))])
    found: NDArray[np.float64] = nnls(rows, wanted)[0] / norm
    if found[0] > most_latency_s:
        found[0] = most_latency_s
        found[1:] = nnls(rows[:, 1:], wanted - rows[:, 0] * norm[0] * most_latency_s)[0] / norm[1:]
    return found


def _busy_periods(samples: list[TransferSample], kinds: list[str]) -> NDArray[np.float64]:
    """(rounds, bytes of each kind, seconds) of each union of overlapping collectives, [periods, 2 + kinds]."""
    periods: list[list[float]] = []
    rows: list[list[float]] = []
    begin = until = -np.inf
    for sample in sorted(samples):
        if sample.alone:
            row = [float(sample.rounds), *[0.0] * len(kinds), sample.end_s - sample.start_s]
            row[1 + kinds.index(sample.collective)] = sample.wire_bytes
            rows.append(row)
            continue
        if sample.start_s >= until:
            begin, until = sample.start_s, sample.end_s
            periods.append([0.0] * (2 + len(kinds)))
        until = max(until, sample.end_s)
        last = periods[-1]
        last[0] = max(last[0], float(sample.rounds))
        last[1 + kinds.index(sample.collective)] += sample.wire_bytes
        last[-1] = until - begin
    return np.array(periods + rows)
