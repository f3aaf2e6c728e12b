"""A partition in little memory: neighbours clustered, clusters placed one by one, and refined on the way back.

The stream is buffered, prioritised and repeated, after HeiStream (Faraj and Schulz, 2022) and Cuttana (Hajidehi et al.,
2024): nodes gather in clusters by label propagation until few are left, or until clusters share nearly all edges of
their nodes, as in a graph without locality; what is left is placed by the score of Fennel (Tsourakakis et al., 2014),
next the one with most placed neighbours, several times over where it is small; then, level by level, nodes move to
where most of their neighbours are, and at last to where fewest rows cross between parts. Each step reads the edges in
order and keeps a word or a few for each node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.stream_kernels import (
    both_ways,
    cluster,
    contract,
    count_needed,
    crossing_rows,
    lower_halo,
    move_by_counts,
    move_to_neighbours,
    place,
    weight_cut,
)
from wirewise.graph.structure import InEdges

__all__ = ["stream"]

_FEW = 12
"""Nodes a part on the coarsest level."""
_COARSE_ROUNDS = 10
"""Most visits of a node of the coarsest level, while nodes follow their neighbours."""
_MAX_LEVELS = 12
_LEAST_SHRINK = 0.9
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
    """Orders in which the coarsest nodes are placed; the one with the lightest cut is taken."""
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


_SMALL = _Effort(2, 3, 8, 3, 1 << 30, 4, 6, 1)
_LARGE = _Effort(1, 2, 60, 1, 24, 2, 2, 32)


def stream(
    edges: InEdges,
    num_parts: int,
    weight: NDArray[np.int64],
    *,
    seed: int,
    max_imbalance: float,
    directed: bool = False,
) -> NDArray[np.int32]:
    """The owner of each node, int32 [nodes].

    O(edges) time for each of about a dozen passes.

    Args:
        edges: In-edges of the graph.
        num_parts: Number of parts, two or more.
        weight: Positive weight of each node.
        seed: Seed of the orders in which nodes are visited.
        max_imbalance: How far a part's weight may exceed the mean, as a fraction.
        directed: Whether edges may lack their reverse.
    """
    limit = int(weight.sum() / num_parts * (1 + max_imbalance))
    inward = _fixed(edges.indptr, edges.indices, np.empty(0, np.int32), weight)
    finest = _fixed(*both_ways(*inward[:2]), *inward[2:]) if directed else inward
    effort = _SMALL if len(edges.indices) < _FEW_EDGES else _LARGE
    best, least = np.empty(0, np.int32), -1
    for number in range(effort.tries):
        rng = np.random.Generator(np.random.Philox(key=[seed, number]))
        owner, rows = _once(inward, finest, num_parts, limit, rng, effort)
        if least < 0 or rows < least:
            best, least = owner, rows
    return best


def _once(
    inward: _Level, finest: _Level, num_parts: int, limit: int, rng: np.random.Generator, effort: _Effort
) -> tuple[NDArray[np.int32], int]:
    """Owners, and how many rows cross between parts; `inward`: the in-edges alone, `finest` where both are one."""
    levels, maps = _levels(finest, num_parts, rng, effort)
    both = inward is finest
    counted = num_parts <= _MOST_COUNTED
    alone = not maps and effort.tries == 1
    starts, rounds = (1, effort.follow) if alone else (effort.starts, _COARSE_ROUNDS)
    owner = _placed(
        levels[-1], num_parts, limit, rng, effort, starts, 0 if alone and both and counted else rounds
    )
    for fine, labels in zip(reversed(levels[:-1]), reversed(maps), strict=True):
        owner = owner[labels]
        if not (fine is finest and both and counted):
            move_to_neighbours(
                *fine, owner, num_parts, limit, *_order(rng, len(owner), effort.run), effort.follow
            )
    if not counted:
        return owner, weight_cut(*finest[:3], owner)
    nodes = inward.node_weight
    needed = count_needed(*inward[:2], owner, num_parts, both)
    if both:
        order = _order(rng, len(owner), effort.run)
        move_by_counts(*inward[:2], nodes, owner, needed, num_parts, limit, *order, effort.follow)
    order = _order(rng, len(owner), effort.run)
    lower_halo(*inward[:2], nodes, owner, needed, num_parts, limit, *order, effort.rows, both)
    return owner, crossing_rows(owner, needed, num_parts)


def _levels(
    finest: _Level, num_parts: int, rng: np.random.Generator, effort: _Effort
) -> tuple[list[_Level], list[NDArray[np.int32]]]:
    """Graphs of fewer and fewer nodes, and the cluster of each node of each but the last."""
    levels, maps, total = [finest], list[NDArray[np.int32]](), int(finest.node_weight.sum())
    while len(levels) < _MAX_LEVELS and len(levels[-1].node_weight) > _FEW * num_parts:
        fine = levels[-1]
        nodes = len(fine.node_weight)
        most = min(max(total // (_FEW * num_parts) // 2, 1), effort.growth * total // nodes + 1)
        labels = cluster(*fine, most, *_order(rng, nodes, effort.run), effort.cluster, effort.looked_at)
        if int(labels.max()) + 1 > _LEAST_SHRINK * nodes:
            break
        coarse = _fixed(*contract(*fine, labels, _LEAST_MERGED if effort.tries == 1 else 1.0))
        if not len(coarse.node_weight):
            break
        maps.append(labels)
        levels.append(coarse)
        held = sum(len(level.indices) for level in levels[1:])
        if len(levels) > 2 and held > len(finest.indices):
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


def _order(rng: np.random.Generator, nodes: int, run: int) -> tuple[NDArray[np.int32], int]:
    """First nodes of runs of successive ones in any order, whose edges lie side by side in memory; nodes of a run."""
    return (run * rng.permutation(-(-nodes // run))).astype(np.int32), run


def _placed(
    level: _Level,
    num_parts: int,
    limit: int,
    rng: np.random.Generator,
    effort: _Effort,
    starts: int,
    rounds: int,
) -> NDArray[np.int32]:
    best, least = np.empty(0, np.int32), -1
    for number in range(starts):
        order = _order(rng, len(level.node_weight), effort.run)
        owner = place(*level, num_parts, limit, *order, _EVENNESS[number % len(_EVENNESS)])
        if rounds:
            move_to_neighbours(*level, owner, num_parts, limit, *order, rounds)
        cut = weight_cut(*level[:3], owner) if starts > 1 else 0
        if least < 0 or cut < least:
            best, least = owner, cut
    return best
