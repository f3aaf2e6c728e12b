"""Per-byte and per-message costs of a link, fitted to measured times and refitted during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["LinkCost", "LinkEstimator", "PairEstimator", "fit_link"]

_MOST_PAIRED = 600
"""Maximum number of samples whose pairs are all compared, as time and memory grow with its square."""
_OUTLIER_DEVIATIONS = 4.0


class LinkCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a message of n bytes: latency_s + s_per_byte * n."""

    latency_s: float
    s_per_byte: float
    r_squared: float | None = None
    """Coefficient of determination over the kept samples. None if not fitted."""
    samples: int = 0
    outliers: int = 0
    """Number of samples that the fit left out."""

    def seconds(self, size_bytes: float) -> float:
        """Predicted seconds of a message."""
        return self.latency_s + self.s_per_byte * size_bytes

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bytes per second of a long message."""
        return 1.0 / self.s_per_byte if self.s_per_byte > 0 else float("inf")


def fit_link(samples: Sequence[tuple[float, float]]) -> LinkCost:
    """Fit a line to (bytes, seconds), robust to a few outliers.

    The median of the slopes of all pairs of samples (Theil-Sen) gives a first line; samples further than four median
    absolute deviations from it are left out, and least squares on the rest gives the result. Measure while all
    channels are loaded: an idle network shows neither incast nor a shared interface.

    Raises:
        InputError: There are fewer than two distinct sizes, or a sample is negative or not finite.
    """
    data = np.asarray(samples, dtype=np.float64).reshape(-1, 2)
    size, seconds = data[:, 0], data[:, 1]
    if not np.isfinite(data).all() or (data < 0).any():
        bad = int(np.flatnonzero(~np.isfinite(data).all(axis=1) | (data < 0).any(axis=1))[0])
        raise InputError(
            f"sample {bad} is ({size[bad]} bytes, {seconds[bad]} s); expected finite numbers >= 0, "
            "measure it again"
        )
    if (distinct := len(np.unique(size))) < 2:
        raise InputError(
            f"got {len(data)} samples of {distinct} distinct sizes; a link's latency and bandwidth need "
            "at least 2 sizes, measure a second size"
        )
    slope, latency = _theil_sen(size, seconds)
    residual = seconds - (latency + slope * size)
    deviation = float(np.median(np.abs(residual - np.median(residual))))
    kept = np.abs(residual) <= _OUTLIER_DEVIATIONS * 1.4826 * deviation + 1e-12 * seconds.max()
    if len(np.unique(size[kept])) >= 2:
        slope, latency = _least_squares(size[kept], seconds[kept])
    slope, latency = _feasible(slope, latency, size[kept], seconds[kept])
    predicted = latency + slope * size[kept]
    total = float(((seconds[kept] - seconds[kept].mean()) ** 2).sum())
    wrong = float(((seconds[kept] - predicted) ** 2).sum())
    return LinkCost(
        latency_s=latency,
        s_per_byte=slope,
        r_squared=1.0 - wrong / total if total > 0 else 1.0,
        samples=len(data),
        outliers=int((~kept).sum()),
    )


def _theil_sen(size: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[float, float]:
    """Median slope over all pairs and the median intercept; every k-th sample by size when there are many."""
    order = np.argsort(size, kind="stable")[:: -(-len(size) // _MOST_PAIRED)]
    x, y = size[order], seconds[order]
    if x[0] == x[-1]:
        x, y = size, seconds
    low, high = np.triu_indices(len(x), k=1)
    run = x[high] - x[low]
    apart = run != 0
    slope = float(np.median((y[high] - y[low])[apart] / run[apart]))
    return slope, float(np.median(y - slope * x))


def _least_squares(size: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[float, float]:
    x = size - size.mean()
    slope = float((x * seconds).sum() / (x * x).sum())
    return slope, float(seconds.mean() - slope * size.mean())


def _feasible(
    slope: float, latency: float, size: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[float, float]:
    """The nearest line whose slope and latency are not negative."""
    if slope < 0:
        return 0.0, float(seconds.mean())
    if latency < 0:
        return float((size * seconds).sum() / (size * size).sum()), 0.0
    return slope, latency


class LinkEstimator:
    """Online estimate of a link's cost from the exchange rounds of a running job.

    Exponentially weighted least squares over rounds. While all sizes are nearly equal, latency and bandwidth cannot
    be separated: the latency is then kept and the slope fitted, so that a slower link is detected although bit widths
    never changed.

    Args:
        start: Cost to begin with.
        decay: Weight of a round relative to the next one; 0.8 halves it in about three rounds.
    """

    def __init__(self, start: LinkCost, *, decay: float = 0.8) -> None:
        if not 0.0 < decay < 1.0:
            raise InputError(f"decay is {decay}; expected a number between 0 and 1, both left out")
        self.cost, self.decay = start, decay
        self._moments = np.zeros(5)

    def observe(self, size_bytes: float, seconds: float) -> LinkCost:
        """Add one round, and return the current cost.

        Args:
            size_bytes: Bytes carried by the path's slowest interface in the round (`Links.load`).
            seconds: Time from the start of the round to the arrival.
        """
        if not (np.isfinite(size_bytes) and np.isfinite(seconds)) or size_bytes <= 0 or seconds < 0:
            raise InputError(f"got {size_bytes} bytes in {seconds} s; expected finite numbers, bytes above 0")
        # One stalled round (a paused process) must not look like a link that broke down; a link that really
        # slowed down gets there in a few rounds.
        taken = min(seconds, 4.0 * self.cost.seconds(size_bytes)) if self.cost.s_per_byte > 0 else seconds
        x, y = float(size_bytes), float(taken)
        self._moments = self.decay * self._moments + np.array([1.0, x, y, x * x, x * y])
        self.cost = self._solve()
        return self.cost

    def _solve(self) -> LinkCost:
        weight, x, y, xx, xy = self._moments.tolist()
        mean_x, mean_y = x / weight, y / weight
        spread = max(xx / weight - mean_x * mean_x, 0.0)
        slope, latency = 0.0, self.cost.latency_s
        if spread > (0.05 * mean_x) ** 2:
            slope = (xy / weight - mean_x * mean_y) / spread
            latency = mean_y - slope * mean_x
        if slope <= 0.0 or latency < 0.0:
            latency = min(self.cost.latency_s, 0.9 * mean_y)
            slope = (mean_y - latency) / mean_x
        return LinkCost(latency_s=latency, s_per_byte=slope, samples=self.cost.samples + 1)


class PairEstimator:
    """Online estimate of the costs of all pairs of ranks of a running job.

    Args:
        start: Initial cost of each (sender, receiver).
    """

    def __init__(self, start: Mapping[tuple[int, int], LinkCost]) -> None:
        self.links = {channel: LinkEstimator(cost) for channel, cost in start.items()}

    def observe_round(
        self,
        load_bytes: Mapping[tuple[int, int], float],
        seconds: Mapping[tuple[int, int], float],
    ) -> None:
        """Add the arrivals of one exchange, in which all channels were loaded concurrently.

        Args:
            load_bytes: Bytes on the slowest interface of each channel's path (`Links.load`).
            seconds: Arrival time of each channel that this rank received on, in seconds.
        """
        for channel, took in seconds.items():
            if channel in self.links and load_bytes.get(channel, 0) > 0:
                self.links[channel].observe(load_bytes[channel], took)

    def costs(self) -> dict[tuple[int, int], LinkCost]:
        """Current costs."""
        return {channel: link.cost for channel, link in self.links.items()}
