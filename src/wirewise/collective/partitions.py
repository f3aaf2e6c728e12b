"""Lower bound on an all-reduce over all partitions of a network's ranks.

In any algorithm, k parts of the ranks must receive 2 (k - 1) times the data: the sums of all parts but one must enter
another part, and the total must enter all but one, as switches do not reduce. The least capacity into the parts over
k - 1 therefore bounds the rate. Without switches this is the bound of Tutte and Nash-Williams (1961) on trees used up
and down, and is reached. The minimum is found exactly: Newton's method on the ratio, and for each ratio the worst
partition by the greedy algorithm for the Dilworth truncation of the cut function, one maximum flow per rank.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.maxflow import UNBOUNDED, Capacities, FlowGraph

__all__ = ["Partition", "tightest_partition"]

_HELD = UNBOUNDED >> 1


class Partition(NamedTuple):
    """Parts of the ranks, and the total capacity into them."""

    parts: tuple[tuple[int, ...], ...]
    capacity: int

    @property
    def ratio(self) -> Fraction:
        """Capacity over the number of parts minus one."""
        return Fraction(self.capacity, len(self.parts) - 1)


def tightest_partition(capacities: Capacities, ranks: int) -> Partition:
    """Find the partition of the first `ranks` vertices with the least capacity over the number of parts minus one.

    Other vertices are switches: each part absorbs those that minimise the capacity into it.

    Args:
        capacities: Capacities of the edges.
        ranks: Number of ranks, at least 2.
    """
    best = _partition(capacities, ranks, list(range(ranks)))
    while True:
        labels = _worst_labels(capacities, ranks, best.ratio)
        if len(set(labels)) == 1:
            return best
        new = _partition(capacities, ranks, labels)
        if new.ratio >= best.ratio:
            return best
        best = new


def _partition(capacities: Capacities, ranks: int, labels: list[int]) -> Partition:
    parts = tuple(tuple(r for r in range(ranks) if labels[r] == label) for label in dict.fromkeys(labels))
    return Partition(parts, sum(_capacity_into(capacities, ranks, part) for part in parts))


def _capacity_into(capacities: Capacities, ranks: int, part: tuple[int, ...]) -> int:
    hub, sink = capacities.vertices, capacities.vertices + 1
    others = np.setdiff1d(np.arange(ranks), part)
    graph = FlowGraph(
        capacities.vertices + 2,
        np.concatenate([capacities.targets, np.full(len(part), hub), others]),
        np.concatenate([capacities.sources, np.array(part, np.int64), np.full(len(others), sink)]),
    )
    return graph.flow(np.concatenate([capacities.amounts, np.full(ranks, _HELD)]), hub, sink)


def _worst_labels(capacities: Capacities, ranks: int, ratio: Fraction) -> list[int]:
    """Partition with the least sum of capacity into a part less the ratio; the label of each rank's part."""
    scaled = capacities._replace(amounts=capacities.amounts * ratio.denominator)
    worth, labels = np.zeros(ranks, np.int64), list(range(ranks))
    for last in range(ranks):
        value, inside = _tight_set(scaled, ranks, worth, last)
        worth[last] = value - ratio.numerator
        merged = {labels[rank] for rank in inside}
        labels = [last if label in merged else label for label in labels]
    return labels


def _tight_set(scaled: Capacities, ranks: int, worth: NDArray[np.int64], last: int) -> tuple[int, list[int]]:
    """Set of ranks up to `last`, with it, of least capacity into it less the worth of the others; value and members."""
    sink = scaled.vertices
    earlier, later = np.arange(last), np.arange(last + 1, ranks)
    graph = FlowGraph(
        sink + 1,
        np.concatenate([scaled.targets, np.full(last, last), earlier, later]),
        np.concatenate([scaled.sources, earlier, np.full(last, sink), np.full(len(later), sink)]),
    )
    gains = np.maximum(worth[:last], 0)
    losses = np.maximum(-worth[:last], 0)
    amounts = np.concatenate([scaled.amounts, gains, losses, np.full(len(later), _HELD)])
    value, side = graph.cut(amounts, last, sink)
    return value - int(gains.sum()), [rank for rank in range(last + 1) if side[rank]]
