"""Largest total weight of spanning trees that fit into undirected capacities.

Tutte and Nash-Williams (1961): it is the least, over all partitions of the vertices, of the capacity between the
parts over their number less one. Found exactly: Newton's method on the ratio, and for each ratio the worst partition
by the greedy algorithm for the Dilworth truncation of the cut function, one maximum flow a vertex.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.maxflow import FlowGraph

__all__ = ["strength"]


def strength(capacity: NDArray[np.int64]) -> Fraction:
    """The rate; 0 where the graph is in pieces.

    Args:
        capacity: Whole numbers, symmetric; [n, n].
    """
    n = len(capacity)
    parts = list(range(n))
    ratio = Fraction(_between(capacity, parts), n - 1)
    while True:
        parts = _worst_parts(capacity, ratio)
        count = len(set(parts))
        if count == 1:
            return ratio
        found = Fraction(_between(capacity, parts), count - 1)
        if found >= ratio:
            return ratio
        ratio = found


def _between(capacity: NDArray[np.int64], parts: list[int]) -> int:
    part = np.array(parts)
    return int(capacity[part[:, None] != part[None, :]].sum()) // 2


def _worst_parts(capacity: NDArray[np.int64], ratio: Fraction) -> list[int]:
    """Partition with the least sum of cut(part) / 2 - ratio; the number of the part of each vertex."""
    n, price = len(capacity), 2 * ratio.numerator
    scaled = capacity * ratio.denominator
    worth = [0] * n
    parts = list(range(n))
    for last in range(n):
        value, inside = _tight_set(scaled, worth, last)
        worth[last] = value - price
        merged = {parts[v] for v in inside}
        parts = [last if part in merged else part for part in parts]
    return parts


def _tight_set(scaled: NDArray[np.int64], worth: list[int], last: int) -> tuple[int, list[int]]:
    """Set of vertices up to `last`, with it, of least cut less the worth of the others; its value and members."""
    count, sink = last + 1, last + 1
    sources, targets, amounts = [], [], []
    for u in range(count):
        beyond = int(scaled[u, count:].sum()) + max(-worth[u], 0)
        arcs = [(u, v, int(scaled[u, v])) for v in range(count) if scaled[u, v]]
        if u != last and worth[u] > 0:
            arcs.append((last, u, worth[u]))
        for source, target, amount in [*arcs, (u, sink, beyond)]:
            sources.append(source)
            targets.append(target)
            amounts.append(amount)
    value, side = FlowGraph(count + 1, sources, targets).cut(amounts, last, sink)
    gained = sum(max(worth[u], 0) for u in range(last))
    return value - gained, [v for v in range(count) if side[v]]
