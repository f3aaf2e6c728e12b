"""Partitioning in little memory: nodes are clustered, clusters placed one by one, then refined level by level.

The stream is buffered, prioritised and repeated, after HeiStream (Faraj and Schulz, 2022) and Cuttana (Hajidehi et
al., 2024): nodes gather in clusters by label propagation until few are left, or until clusters share nearly all edges
of their nodes, as in a graph without locality; the clusters are placed by Fennel's score (Tsourakakis et al., 2014),
next the one with most placed neighbours, in several orders of which the best is kept; then, level by level, nodes
move to the part of most of their neighbours, and finally to the part that minimises rows crossing between parts.
Small graphs are coarsened again within their parts and refined, as in multilevel partitioners. Each step reads the
edges in order and keeps a few words per node.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.stream_kernels import (
    cluster,
    contract,
    count_needed,
    crossing_rows,
    lower_halo,
    move_by_counts,
    move_to_neighbours,
    place,
    undirected_csr,
    weight_cut,
)
from wirewise.graph.structure import InEdges

__all__ = ["stream"]

_STARTS = 128
"""Orders in which the coarsest nodes are placed, times the square of the parts: of few parts a bad start shows most. On
the Debian graph halo rows in two parts were 1.37 of METIS' with two orders, and 0.90 (median of seeds) with these."""
_NO_PARTS = np.empty(0, np.int32)
_FEW = 12
"""Nodes a part on the coarsest level."""
_COARSE_ROUNDS = 10
"""Most visits of a node of the coarsest level, while nodes follow their neighbours."""
_MAX_LEVELS = 12
_LEAST_SHRINK = 0.96
"""A level with more of the nodes of the one below is the last."""
_EVENNESS = (1.0, 0.3, 0.1)
"""Weights of the cost of full parts, one after another: the best depends on the graph."""
_LEAST_MERGED = 0.85
"""A level with more of the edges of the one below shows no locality, and is left out with all above it."""
_FEW_EDGES = 100_000
_MOST_COUNTED = 32
"""Parts up to which rows that cross are counted; a byte for each node and part."""


class _Level(NamedTuple):
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    edge_weight: NDArray[np.int32]
    """Empty: every edge weighs one."""
    node_weight: NDArray[np.int64]


class _Effort(NamedTuple):
    """How much is done for the quality of the parts."""

    tries: int
    """Partitions from the start, of which the one with fewest rows between parts is taken."""
    starts: int
    """Fewest orders in which the coarsest nodes are placed, of which the one with the lightest cut is taken."""
    cycles: int
    """How often a partition is coarsened within its parts and refined again."""
    growth: int
    """How many times the mean node a cluster may weigh."""
    cluster: int
    """Visits of a node while clusters form."""
    looked_at: int
    """Edges of a node that are looked at then."""
    follow: int
    """Most visits of a node while nodes follow their neighbours, on each level."""
    rows: int
    """Most visits of a node while rows are counted."""
    run: int
    """Nodes that are visited in the order of their ids."""


_SMALL = _Effort(4, 16, 2, 8, 3, 1 << 30, 4, 6, 1)
_LARGE = _Effort(1, 8, 0, 60, 1, 24, 2, 2, 32)


def stream(
    edges: InEdges,
    num_parts: int,
    weight: NDArray[np.int64],
    *,
    seed: int,
    max_imbalance: float,
    directed: bool = False,
) -> NDArray[np.int32]:
    """Partition a graph by streaming; returns the owner of each node, int32 [nodes].

    O(edges) time for each of about a dozen passes; a few dozen on graphs of fewer than 100,000 edges.

    Args:
        edges: In-edges of the graph.
        num_parts: Number of parts, two or more.
        weight: Positive weight of each node.
        seed: Seed of the orders in which nodes are visited.
        max_imbalance: Maximum deviation of a part's weight from the mean, as a fraction.
        directed: Whether edges may lack their reverse.
    """
    mean = weight.sum() / num_parts
    bounds = (
        min(math.ceil(mean * (1 - max_imbalance)), math.floor(mean)),
        max(math.floor(mean * (1 + max_imbalance)), math.ceil(mean)),
    )
    inward = _fixed(edges.indptr, edges.indices, np.empty(0, np.int32), weight)
    finest = _fixed(*undirected_csr(*inward[:2]), *inward[2:]) if directed else inward
    effort = _SMALL if len(edges.indices) < _FEW_EDGES else _LARGE
    best, least = np.empty(0, np.int32), -1
    for number in range(effort.tries):
        rng = np.random.Generator(np.random.Philox(key=[seed, number]))
        owner, rows = _once(_Task(inward, finest, num_parts, bounds, rng, effort))
        if least < 0 or rows < least:
            best, least = owner, rows
    return best


class _Task(NamedTuple):
    inward: _Level
    """The in-edges alone."""
    finest: _Level
    """Edges in both directions; `inward` itself where each edge has its reverse."""
    parts: int
    bounds: tuple[int, int]
    """Least and most weight of a part."""
    rng: np.random.Generator
    effort: _Effort

    @property
    def counted(self) -> bool:
        """Whether the finest nodes move by counts of their neighbours in each part."""
        return self.inward is self.finest and self.parts <= _MOST_COUNTED

    def order(self, nodes: int) -> tuple[NDArray[np.int32], int]:
        """First nodes of runs of successive ones, shuffled, and nodes of a run, whose edges are adjacent in memory."""
        run = self.effort.run
        return (run * self.rng.permutation(-(-nodes // run))).astype(np.int32), run


def _once(task: _Task) -> tuple[NDArray[np.int32], int]:
    """Owners, and how many rows cross between parts."""
    levels, maps = _levels(task, _NO_PARTS)
    best, least = _refined(task, levels, maps, _placed(task, levels[-1], alone=not maps))
    for _ in range(task.effort.cycles):
        levels, maps = _levels(task, best)
        start = best.copy()
        for labels in maps:
            start = _owners(labels, start)
        move_to_neighbours(
            *levels[-1], start, task.parts, task.bounds, *task.order(len(start)), _COARSE_ROUNDS
        )
        owner, rows = _refined(task, levels, maps, start)
        if rows < least:
            best, least = owner, rows
    return best, least


def _owners(labels: NDArray[np.int32], owner: NDArray[np.int32]) -> NDArray[np.int32]:
    """Part of each cluster, whose nodes are all in one part."""
    of = np.empty(int(labels.max()) + 1, np.int32)
    of[labels] = owner
    return of


def _refined(
    task: _Task, levels: list[_Level], maps: list[NDArray[np.int32]], owner: NDArray[np.int32]
) -> tuple[NDArray[np.int32], int]:
    """Owners of the finest level from those of the coarsest, and how many rows cross between parts."""
    parts, bounds, effort = task.parts, task.bounds, task.effort
    for fine, labels in zip(reversed(levels[:-1]), reversed(maps), strict=True):
        owner = owner[labels]
        if not (fine is task.finest and task.counted):
            move_to_neighbours(*fine, owner, parts, bounds, *task.order(len(owner)), effort.follow)
    if parts > _MOST_COUNTED:
        return owner, weight_cut(*task.finest[:3], owner)
    edges, nodes, both = task.inward[:2], task.inward.node_weight, task.counted
    needed = count_needed(*edges, owner, parts, both)
    if both:
        move_by_counts(*edges, nodes, owner, needed, parts, bounds, *task.order(len(owner)), effort.follow)
    lower_halo(*edges, nodes, owner, needed, parts, bounds, *task.order(len(owner)), effort.rows, both)
    return owner, crossing_rows(owner, needed, parts)


def _levels(task: _Task, owner: NDArray[np.int32]) -> tuple[list[_Level], list[NDArray[np.int32]]]:
    """Graphs of fewer and fewer nodes, and the cluster of each node of each but the last.

    Args:
        task: Graph and effort.
        owner: Part of each node, which no cluster crosses; empty: none yet.
    """
    effort, few = task.effort, _FEW * task.parts
    levels, maps = [task.finest], list[NDArray[np.int32]]()
    total = int(task.finest.node_weight.sum())
    while len(levels) < _MAX_LEVELS and len(levels[-1].node_weight) > few:
        fine = levels[-1]
        nodes = len(fine.node_weight)
        most = min(max(total // few // 2, 1), effort.growth * total // nodes + 1)
        labels = cluster(*fine, most, *task.order(nodes), effort.cluster, effort.looked_at, owner)
        if int(labels.max()) + 1 > _LEAST_SHRINK * nodes:
            break
        coarse = _fixed(*contract(*fine, labels, _LEAST_MERGED if effort.tries == 1 else 1.0))
        if not len(coarse.node_weight):
            break
        maps.append(labels)
        levels.append(coarse)
        owner = _owners(labels, owner) if len(owner) else owner
        held = sum(len(level.indices) for level in levels[1:])
        if len(levels) > 2 and held > len(task.finest.indices):
            # Clusters of a graph without locality share nearly as many edges as its nodes: a level between goes.
            maps[-2:] = [labels[maps[-2]]]
            del levels[-2]
    return levels, maps


def _fixed(*arrays: NDArray[Any]) -> _Level:
    """A level for reading only, as mapped graphs are: kernels are compiled for one kind of arrays."""
    views = [array.view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    return _Level(*views)


def _placed(task: _Task, level: _Level, *, alone: bool) -> NDArray[np.int32]:
    """Owners of the coarsest nodes; `alone`: they are the nodes of the graph."""
    once = alone and task.effort.tries == 1
    starts = 1 if once else max(_STARTS // task.parts**2, task.effort.starts)
    rounds = task.effort.follow if once else _COARSE_ROUNDS
    best, least = np.empty(0, np.int32), -1
    for number in range(starts):
        order = task.order(len(level.node_weight))
        owner = place(*level, task.parts, task.bounds, *order, _EVENNESS[number % len(_EVENNESS)])
        if not (once and task.counted):
            move_to_neighbours(*level, owner, task.parts, task.bounds, *order, rounds)
        cut = weight_cut(*level[:3], owner) if starts > 1 else 0
        if least < 0 or cut < least:
            best, least = owner, cut
    return best
