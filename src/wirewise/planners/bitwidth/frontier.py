"""Least variance of a channel at every number of bytes.

Two constructions. Groups of equal size cost multiples of one unit of bytes, so dynamic programming over units is
exact for any bit set. Many single messages take the steepest upgrades first (largest variance drop per byte), which
is exact at the end of each upgrade and within one message elsewhere. A menu condenses a channel's choices to about
sixty points that ranks can share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit
from wirewise.planners.arrays import Ints, Vector
from wirewise.planners.bitwidth.problem import BFLOAT16_NOISE, ChannelProblem, noise_factor

__all__ = ["CandidatePoints", "Frontier", "frontier", "lower_convex_hull", "menu_points", "order_upgrades"]


_QUANTILES = np.array([0.004, 0.016, 0.05, 0.12, 0.25, 0.4, 0.55, 0.7, 0.82, 0.92, 0.98])
"""Shares of a channel's messages that have made an upgrade; close together at the heavy end."""

_MOST_CELLS = 20_000_000
"""Group-by-unit cells up to which the exact table is built."""


@dataclass(frozen=True)
class Frontier:
    """Pareto frontier of bytes and variance, in ascending bytes."""

    size_bytes: Ints
    noise: Vector
    bits: Callable[[int], NDArray[np.uint8]]
    """Bits of the groups at a point, heaviest group first."""


def lower_convex_hull(size: Ints, noise: Vector) -> Ints:
    """Options on the lower convex hull of (bytes, noise), bytes ascending."""
    order = np.lexsort((noise, size))
    kept: list[int] = []
    for i in order.tolist():
        if kept and noise[i] >= noise[kept[-1]]:
            continue
        while len(kept) > 1 and _slope(size, noise, kept[-2], kept[-1]) >= _slope(size, noise, kept[-1], i):
            kept.pop()
        if kept and size[i] == size[kept[-1]]:
            continue
        kept.append(i)
    return np.array(kept, dtype=np.int64)


def _slope(size: Ints, noise: Vector, a: int, b: int) -> float:
    return float((noise[b] - noise[a]) / (size[b] - size[a]))


@njit()
def _fill_table(weights: Vector, noise: Vector, units: Ints, budget: int, table: NDArray[np.uint8]) -> Vector:
    """Least variance with at most k units for k in 0..budget; `table` keeps the level taken."""
    best = np.zeros(budget + 1)
    for i in range(len(weights)):
        before = best.copy()
        for k in range(budget + 1):
            least = np.inf
            level = 0
            for j in range(len(units)):
                if units[j] <= k and before[k - units[j]] + weights[i] * noise[j] < least:
                    least = before[k - units[j]] + weights[i] * noise[j]
                    level = j
            best[k] = least
            table[i, k] = level
    return best


@njit()
def _read_table(table: NDArray[np.uint8], units: Ints, budget: int) -> Ints:
    levels = np.zeros(table.shape[0], dtype=np.int64)
    for i in range(table.shape[0] - 1, -1, -1):
        levels[i] = table[i, budget]
        budget -= units[levels[i]]
    return levels


def frontier(weights: Vector, rows: Ints, row_bytes: Ints, noise: Vector, bits: tuple[int, ...]) -> Frontier:
    """Compute the frontier of one channel.

    Args:
        weights: Weight of each group, heaviest first, [groups].
        rows: Rows of each group: equal, except that the last may be smaller, [groups].
        row_bytes: Bytes of a row at each bit width.
        noise: Variance of a unit weight at each bit width.
        bits: Bit widths, ascending.
    """
    short = len(rows) > 1 and rows[-1] != rows[0]
    full = len(weights) - short
    order = np.argsort(row_bytes, kind="stable")
    size, factor, names = row_bytes[order], noise[order], np.array(bits, dtype=np.uint8)[order]
    unit = max(int(np.gcd.reduce(size - size[0])), 1)
    units = (size - size[0]) // unit
    budget = int(full * units[-1])
    table: NDArray[np.uint8] | None = None
    upgrades = np.empty(0, np.int64)
    if full * (budget + 1) <= _MOST_CELLS:
        table = np.empty((full, budget + 1), dtype=np.uint8)
        curve = _fill_table(weights[:full], factor, units, budget, table)
        extra = np.arange(budget + 1) * unit * int(rows[0])
    else:
        kept = lower_convex_hull(size, factor)
        size, factor, names = size[kept], factor[kept], names[kept]
        upgrades, extra, curve, _ = order_upgrades(weights[:full], size * int(rows[0]), factor)
    base = full * int(rows[0]) * int(size[0])
    points = [(extra + base, curve, np.zeros(len(curve), np.int64))]
    if short:
        last_bytes, last_noise = size * int(rows[-1]), factor * float(weights[-1])
        points = [
            (extra + base + int(last_bytes[j]), curve + float(last_noise[j]), np.full(len(curve), j))
            for j in range(len(size))
        ]
    total = np.concatenate([p[0] for p in points])
    variance = np.concatenate([p[1] for p in points])
    # Budget or number of upgrades of the full groups, level of the short one, [points, 2].
    pick = np.stack([np.tile(np.arange(len(curve)), len(points)), np.concatenate([p[2] for p in points])], 1)
    keep = _pareto(total, variance)
    pick = pick[keep]

    def bits_at(point: int) -> NDArray[np.uint8]:
        taken, last = pick[point].tolist()
        if table is not None:
            levels = _read_table(table, units, taken)
        else:
            levels = np.bincount(upgrades[:taken], minlength=full)
        return names[np.append(levels, last) if short else levels]

    return Frontier(total[keep], variance[keep], bits_at)


def order_upgrades(weights: Vector, size: Ints, factor: Vector) -> tuple[Ints, Ints, Vector, Vector]:
    """Order upgrades by decreasing gain per byte: group, cumulative bytes, cumulative variance, gain per byte."""
    step, drop = np.diff(size), -np.diff(factor)
    gain = ((drop / step)[:, None] * weights[None, :]).ravel()
    # A stable sort keeps the levels of a group in order when gains are equal.
    order = np.argsort(-gain, kind="stable")
    level, group = np.divmod(order, max(len(weights), 1))
    extra = np.concatenate([[0], np.cumsum(step[level])])
    total = factor[0] * weights.sum()
    curve = total - np.concatenate([[0.0], np.cumsum(drop[level] * weights[group])])
    return group, extra, curve, gain[order]


def _pareto(size: Ints, noise: Vector) -> Ints:
    order = np.lexsort((noise, size))
    ahead = np.concatenate([[np.inf], np.minimum.accumulate(noise[order])[:-1]])
    return order[noise[order] < ahead]


def menu_points(size: Ints, bits: Sequence[int]) -> int:
    """Number of points of every menu for rows of these sizes."""
    return len(bits) + (len(_hull_of(size, bits)) - 1) * len(_QUANTILES)


def _hull_of(size: Ints, bits: Sequence[int]) -> Ints:
    return lower_convex_hull(size, np.array([noise_factor(b) for b in bits]))


@dataclass(frozen=True)
class CandidatePoints:
    """Candidate points: uniform widths first, then mixtures by thresholds on the weight.

    A mixture is optimal for its number of bytes: a message gets more bits than another only if its weight is
    larger, and the thresholds of all widths follow from one price of a byte.
    """

    bits: tuple[int, ...]
    counts: Ints
    """Messages at each width, [points, widths]."""
    noise: Vector
    """Variance of each point, [points]."""
    _order: Ints
    _levels: Ints
    _passed: Ints

    @classmethod
    def of(cls, channel: ChannelProblem, size: Ints, bits: Sequence[int]) -> CandidatePoints:
        """Build the menu of one channel.

        Args:
            channel: Messages and weights.
            size: Bytes of a row at each bit width.
            bits: Allowed bit widths, ascending.
        """
        count, widths = len(channel.weights), len(bits)
        order = np.argsort(-channel.weights, kind="stable")
        levels = _hull_of(size, bits)
        passed = _thresholds(channel.weights[order], size[levels], np.array(bits)[levels])
        bounds = np.concatenate(
            [np.full((len(passed), 1), count), passed, np.zeros((len(passed), 1), np.int64)], 1
        )
        counts = np.zeros((widths + len(passed), widths), dtype=np.int64)
        counts[:widths][np.diag_indices(widths)] = count
        counts[widths:, levels] = bounds[:, :-1] - bounds[:, 1:]
        noise = np.empty(len(counts))
        prefix = [_noise_prefix(channel, order, b) for b in bits]
        noise[:widths] = [p[-1] for p in prefix]
        noise[widths:] = sum(
            prefix[level][bounds[:, i]] - prefix[level][bounds[:, i + 1]]
            for i, level in enumerate(levels.tolist())
        )
        return cls(tuple(bits), counts, np.maximum(noise, 0.0), order, levels, passed)

    def message_bits(self, point: int) -> NDArray[np.uint8]:
        """Bits of every message in send order at a menu point, uint8 [n]."""
        if point < len(self.bits):
            return np.full(len(self._order), self.bits[point], dtype=np.uint8)
        rank = np.arange(len(self._order))
        level = (rank[:, None] < self._passed[point - len(self.bits)][None, :]).sum(axis=1)
        out = np.empty(len(self._order), dtype=np.uint8)
        out[self._order] = np.array(self.bits, dtype=np.uint8)[self._levels[level]]
        return out


def _noise_prefix(channel: ChannelProblem, order: Ints, bits: int) -> Vector:
    """Variance of the k heaviest messages at `bits`, [n + 1]."""
    if bits == 16 and channel.energies is not None:
        each = BFLOAT16_NOISE * channel.energies[order]
    else:
        each = noise_factor(bits) * channel.weights[order]
    return np.concatenate([[0.0], np.cumsum(each)])


def _thresholds(weights: Vector, size: Ints, bits: Ints) -> Ints:
    """Messages, heaviest first, that pass each upgrade at each point, [points, upgrades], falling in rows."""
    factor = np.array([noise_factor(int(b)) for b in bits])
    gain = -np.diff(factor) / np.diff(size)
    count, upgrades = len(weights), len(gain)
    passed = np.zeros((upgrades * len(_QUANTILES), upgrades), dtype=np.int64)
    if not count:
        return passed
    place = np.ceil(_QUANTILES * count).astype(np.int64)
    rising = weights[::-1]
    for k in range(upgrades):
        # The price at which exactly `place` messages find upgrade k worth its bytes.
        price = weights[place - 1] * gain[k]
        block = passed[k * len(place) : (k + 1) * len(place)]
        for j in range(upgrades):
            block[:, j] = count - np.searchsorted(rising, price / gain[j], side="left")
        # Equal weights pass together by price; by place the quantile itself stays exact.
        block[:, k] = place
        block[:, :k] = np.maximum(block[:, :k], place[:, None])
        block[:, k + 1 :] = np.minimum(block[:, k + 1 :], place[:, None])
    return passed
