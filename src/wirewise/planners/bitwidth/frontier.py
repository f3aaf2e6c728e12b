"""The least variance that a channel can have at every number of bytes.

Two constructions. Groups of equal size cost whole numbers of one unit of bytes, so dynamic programming over
units is exact for any bit set. Many single messages take the steepest upgrades first (largest variance drop
a byte), which is exact wherever an upgrade ends and within one message elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["Frontier", "frontier", "hull"]

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_CELLS = 20_000_000
"""Group-by-unit cells up to which the exact table is built."""


@dataclass(frozen=True)
class Frontier:
    """Points that no other point beats in both bytes and variance, bytes ascending."""

    size_bytes: Ints
    noise: Vector
    _pick: NDArray[np.int64]
    """[points, 2]: budget or number of upgrades of the full groups, level of the short one."""
    _table: NDArray[np.uint8] | None
    _upgrades: Ints | None
    _units: Ints
    _full: int
    _bits: NDArray[np.uint8]
    _short: bool

    def bits(self, point: int) -> NDArray[np.uint8]:
        """Bits of the groups at a point, heaviest group first."""
        budget, last = self._pick[point].tolist()
        if self._table is not None:
            levels = _read_table(self._table, self._units, budget)
        else:
            assert self._upgrades is not None
            levels = np.bincount(self._upgrades[:budget], minlength=self._full)
        if self._short:
            levels = np.append(levels, last)
        return self._bits[levels]


def hull(size: Ints, noise: Vector) -> Ints:
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


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
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


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def _read_table(table: NDArray[np.uint8], units: Ints, budget: int) -> Ints:
    levels = np.zeros(table.shape[0], dtype=np.int64)
    for i in range(table.shape[0] - 1, -1, -1):
        levels[i] = table[i, budget]
        budget -= units[levels[i]]
    return levels


def frontier(weights: Vector, rows: Ints, row_bytes: Ints, noise: Vector, bits: tuple[int, ...]) -> Frontier:
    """The frontier of one channel.

    Args:
        weights: Weight of each group, heaviest first, [groups].
        rows: Rows of each group: equal, the last one may be smaller, [groups].
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
    upgrades: Ints | None = None
    if full * (budget + 1) <= _MOST_CELLS:
        table = np.empty((full, budget + 1), dtype=np.uint8)
        curve = _fill_table(weights[:full], factor, units, budget, table)
        extra = np.arange(budget + 1) * unit * int(rows[0])
    else:
        kept = hull(size, factor)
        size, factor, names = size[kept], factor[kept], names[kept]
        upgrades, extra, curve = _upgrade(weights[:full], size * int(rows[0]), factor)
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
    pick = np.stack([np.tile(np.arange(len(curve)), len(points)), np.concatenate([p[2] for p in points])], 1)
    keep = _pareto(total, variance)
    return Frontier(total[keep], variance[keep], pick[keep], table, upgrades, units, full, names, short)


def _upgrade(weights: Vector, size: Ints, factor: Vector) -> tuple[Ints, Ints, Vector]:
    """Upgrades steepest first: the group of each one, and bytes and variance after each number of them."""
    step, drop = np.diff(size), -np.diff(factor)
    gain = (drop / step)[:, None] * weights[None, :]
    # A stable sort keeps the levels of a group in order when gains are equal.
    order = np.argsort(-gain.ravel(), kind="stable")
    group, level = order % len(weights), order // len(weights)
    extra = np.concatenate([[0], np.cumsum(step[level])])
    total = factor[0] * weights.sum()
    curve = total - np.concatenate([[0.0], np.cumsum(drop[level] * weights[group])])
    return group, extra, curve


def _pareto(size: Ints, noise: Vector) -> Ints:
    order = np.lexsort((noise, size))
    ahead = np.concatenate([[np.inf], np.minimum.accumulate(noise[order])[:-1]])
    return order[noise[order] < ahead]
