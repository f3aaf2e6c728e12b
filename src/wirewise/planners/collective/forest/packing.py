"""Trees grown edge by edge until they use all capacity.

Edmonds' theorem on disjoint branchings, in the form for many roots and batches of equal trees (Bérczi and Frank 2010;
ForestColl, Zhao et al. 2024). A batch may use an edge for only as many of its trees as leave every set of vertices
enough incoming edges for all trees that have not reached it; one maximum flow gives this number. If it is fewer than
all, the batch is split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.maxflow import UNBOUNDED, Capacities, FlowGraph
from wirewise.errors import PlanError
from wirewise.planners.collective.deadline import Deadline

__all__ = ["TreeBatch", "grow"]

_TRIES = 6
"""Edges that can be taken in part that are compared before the best is taken."""


@dataclass
class TreeBatch:
    """Batch of equal trees: their number, and the arcs of each, roots first."""

    root: int
    trees: int
    arcs: list[int] = field(default_factory=list)
    depth: dict[int, int] = field(default_factory=dict)

    def without(self, trees: int) -> TreeBatch:
        """Remaining batch after splitting off `trees` trees."""
        return TreeBatch(self.root, self.trees - trees, list(self.arcs), dict(self.depth))


def grow(
    capacities: Capacities, trees: Mapping[int, int], group: Sequence[int], deadline: Deadline
) -> list[TreeBatch]:
    """Grow spanning trees of the group, with a given number per root, that fit into the capacities.

    Lower trees are preferred: arcs near the root are tried first.

    Raises:
        PlanError: That number of trees does not fit.
        Late: The deadline has passed.
    """
    left = capacities.amounts.copy()
    open_ = [TreeBatch(root, count, [], {root: 0}) for root, count in reversed(list(trees.items()))]
    done = []
    while open_:
        batch = open_.pop()
        while len(batch.depth) < len(group):
            deadline.check()
            arc, amount = _next(capacities, left, batch, open_)
            if amount < batch.trees:
                open_.append(batch.without(amount))
                batch.trees = amount
            left[arc] -= amount
            batch.arcs.append(arc)
            batch.depth[int(capacities.targets[arc])] = batch.depth[int(capacities.sources[arc])] + 1
        done.append(batch)
    return done


def _next(
    capacities: Capacities, left: NDArray[np.int64], batch: TreeBatch, others: Sequence[TreeBatch]
) -> tuple[int, int]:
    """Arc to take, and for how many trees of the batch."""
    room, best, tries = _Room(capacities, left, others), (-1, 0), 0
    for arc in _candidates(capacities, left, batch):
        amount = room.on(arc, min(int(left[arc]), batch.trees))
        if amount == batch.trees:
            return arc, amount
        tries += amount > 0
        best = (arc, amount) if amount > best[1] else best
        if tries == _TRIES:
            break
    if not best[1]:
        raise PlanError(
            f"{batch.trees} trees of root {batch.root} cannot reach more than {sorted(batch.depth)}; expected "
            "capacities that carry all trees"
        )
    return best


def _candidates(capacities: Capacities, left: NDArray[np.int64], batch: TreeBatch) -> list[int]:
    """Arcs that reach a new vertex: near the root first, those with room for all trees first."""
    depth = np.full(capacities.vertices, -1)
    depth[list(batch.depth)] = list(batch.depth.values())
    arcs = np.flatnonzero((left > 0) & (depth[capacities.sources] >= 0) & (depth[capacities.targets] < 0))
    order = np.lexsort((-left[arcs], left[arcs] < batch.trees, depth[capacities.sources[arcs]]))
    return [int(arc) for arc in arcs[order]]


class _Room:
    """Capacity of an arc for a batch, while other batches still have to grow."""

    def __init__(self, capacities: Capacities, left: NDArray[np.int64], others: Sequence[TreeBatch]) -> None:
        self._found, count = capacities, capacities.vertices
        self._hub = count
        self._start = np.zeros(count, np.int64)
        grown = []
        for other in others:
            if len(other.depth) == 1:
                self._start[other.root] += other.trees
            else:
                grown.append(other)
        sources = [capacities.sources, np.full(count + len(grown), count)]
        targets = [capacities.targets, np.arange(count), count + 1 + np.arange(len(grown))]
        for number, other in enumerate(grown, count + 1):
            sources.append(np.full(len(other.depth), number))
            targets.append(np.array(list(other.depth), np.int64))
        reached = sum(len(other.depth) for other in grown)
        self._graph = FlowGraph(count + 1 + len(grown), np.concatenate(sources), np.concatenate(targets))
        self._amounts = np.concatenate(
            [left, self._start, [other.trees for other in grown], np.full(reached, UNBOUNDED >> 8)]
        ).astype(np.int64)
        self._others = sum(other.trees for other in others)

    def on(self, arc: int, maximum: int) -> int:
        """Trees that may take the arc, at most `maximum`."""
        source, target = int(self._found.sources[arc]), int(self._found.targets[arc])
        amounts = self._amounts.copy()
        amounts[len(self._found.sources) + source] = UNBOUNDED >> 8
        flow = self._graph.flow(amounts, self._hub, target, self._others + maximum)
        return max(0, min(maximum, flow - self._others))
