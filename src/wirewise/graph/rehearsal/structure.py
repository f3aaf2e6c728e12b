"""Node selection by position in the graph: k-centre, and maximum coverage within some hops.

Distances are hops along in-edges, so the graph should be undirected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.structure import InEdges, entries_of
from wirewise.jit import njit

__all__ = ["coverage", "k_centre", "radius"]

_FAR = np.iinfo(np.int32).max
_MOST_COVERED = 4096
"""Nodes that `coverage` looks at: it holds so many bits for every node of the graph."""


@njit()
def _approach(indptr, indices, source, maximum, hops, queue):  # type: ignore[no-untyped-def]
    """Lower `hops` to the distance from `source` where that is less and at most `maximum`; returns how many it saw."""
    hops[source] = 0
    queue[0] = source
    first, end = 0, 1
    while first < end:
        node = queue[first]
        first += 1
        step = hops[node] + 1
        if step > maximum:
            break
        for edge in range(indptr[node], indptr[node + 1]):
            other = indices[edge]
            if step < hops[other]:
                hops[other] = step
                queue[end] = other
                end += 1
    return end


@njit()
def _trees(indptr, indices, roots, depth, parent, queue):  # type: ignore[no-untyped-def]
    """Depth and parent of every node in a breadth-first tree of its component, from the first root inside it."""
    for root in roots:
        if depth[root] >= 0:
            continue
        depth[root] = 0
        queue[0] = root
        first, end = 0, 1
        while first < end:
            node = queue[first]
            first += 1
            for edge in range(indptr[node], indptr[node + 1]):
                other = indices[edge]
                if depth[other] < 0:
                    depth[other] = depth[node] + 1
                    parent[other] = node
                    queue[end] = other
                    end += 1


@njit()
def _spread(indptr, indices, nodes, old, new):  # type: ignore[no-untyped-def]
    """Set the rows `nodes` of `new` to their bits and those of their neighbours in `old`."""
    for node in nodes:
        for word in range(old.shape[1]):
            new[node, word] = old[node, word]
        for edge in range(indptr[node], indptr[node + 1]):
            for word in range(old.shape[1]):
                new[node, word] |= old[indices[edge], word]


class _Distances:
    """Hops from each node to the nearest chosen one."""

    def __init__(self, edges: InEdges, maximum: int | None) -> None:
        nodes = len(edges.indptr) - 1
        self.edges, self.cap = edges, nodes if maximum is None else maximum
        self.hops = np.full(nodes, _FAR, np.int32)
        self._queue = np.empty(nodes, np.int64)

    def add(self, node: int) -> None:
        _approach(self.edges.indptr, self.edges.indices, node, self.cap, self.hops, self._queue)

    def of(self, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.minimum(self.hops[nodes], self.cap)


def radius(
    edges: InEdges, nodes: NDArray[np.int64], centres: NDArray[np.int64], *, maximum: int | None = None
) -> int:
    """Largest distance in hops from any of `nodes` to its nearest centre, capped at `maximum`."""
    found = _Distances(edges, maximum)
    for centre in centres:
        found.add(int(centre))
    return int(found.of(nodes).max(initial=0))


def k_centre(
    edges: InEdges, nodes: NDArray[np.int64], budget: int, *, maximum: int | None = None
) -> NDArray[np.int64]:
    """Select `budget` nodes whose `radius` is at most twice the smallest possible; exact on trees.

    Farthest first (T. Gonzalez: Clustering to Minimize the Maximum Intercluster Distance, 1985), from the node of
    highest degree, ties to the higher degree, then the lower id. If it gives a smaller radius, centres are taken
    instead as far above the deepest uncovered nodes of a breadth-first tree as the radius allows. One breadth-first
    search per centre, pruned where it brings no node nearer.

    Args:
        edges: Edges of the undirected graph.
        nodes: Nodes to choose from and to cover, ascending.
        budget: Maximum number of nodes.
        maximum: Cap of distances, in hops.
    """
    if budget >= len(nodes):
        return nodes
    chosen = _farthest_first(edges, nodes, budget, maximum)
    high = radius(edges, nodes, chosen, maximum=maximum)
    low = (high + 1) // 2
    depth, parent = _forest(edges, nodes)
    while low < high:
        goal = (low + high) // 2
        if (found := _within(edges, nodes, budget, goal, depth, parent)) is None:
            low = goal + 1
        else:
            chosen, high = found, goal
    return chosen


def _farthest_first(
    edges: InEdges, nodes: NDArray[np.int64], budget: int, maximum: int | None
) -> NDArray[np.int64]:
    degree = np.diff(edges.indptr)[nodes]
    order = nodes[np.argsort(-degree, kind="stable")]
    found, chosen = _Distances(edges, maximum), [int(order[0])]
    found.add(chosen[0])
    while len(chosen) < budget:
        hops = found.of(order)
        hops[found.hops[order] == 0] = -1
        chosen.append(int(order[np.argmax(hops)]))
        found.add(chosen[-1])
    return np.sort(np.array(chosen, np.int64))


def _forest(edges: InEdges, roots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    nodes = len(edges.indptr) - 1
    depth, parent = np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64)
    _trees(edges.indptr, edges.indices, roots, depth, parent, np.empty(nodes, np.int64))
    return depth, parent


def _within(
    edges: InEdges,
    nodes: NDArray[np.int64],
    budget: int,
    goal: int,
    depth: NDArray[np.int64],
    parent: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Centres with every node within `goal` hops, or None where this rule needs more than the budget."""
    usable = np.zeros(len(depth), bool)
    usable[nodes] = True
    found = _Distances(edges, goal)
    chosen: list[int] = []
    for node in nodes[np.argsort(-depth[nodes], kind="stable")]:
        if found.hops[node] <= goal:
            continue
        if len(chosen) == budget:
            return None
        centre = above = int(node)
        for _ in range(goal):
            above = int(parent[above])
            if above < 0:
                break
            centre = above if usable[above] else centre
        chosen.append(centre)
        found.add(centre)
    return np.sort(np.array(chosen, np.int64))


def coverage(
    edges: InEdges, nodes: NDArray[np.int64], budget: int, *, hops: int = 2, seed: int = 0
) -> NDArray[np.int64]:
    """Greedily select nodes that cover as many others as possible within some hops.

    Greedy selection reaches at least 1 - 1/e of the optimum (Nemhauser, Wolsey, Fisher 1978). Once all is covered, a
    new round begins. Of more than 4,096 nodes, 4,096 are sampled. Time is edges x hops x candidates / 64.

    Args:
        edges: Edges of the undirected graph.
        nodes: Nodes to choose from and to cover, ascending.
        budget: Maximum number of nodes.
        hops: Coverage radius of a node, in hops.
        seed: Seed of the sampling and of tie-breaking.
    """
    if budget >= len(nodes):
        return nodes
    order = np.random.default_rng(seed).permutation(nodes)[: max(_MOST_COVERED, budget)]
    covered = _covered(edges, order, hops)
    every = np.bitwise_or.reduce(covered, axis=0)
    left, free = every.copy(), np.ones(len(order), bool)
    chosen: list[int] = []
    for _ in range(budget):
        if not left.any():
            left[:] = every
        gains = np.where(free, _ones(covered & left), -1)
        best = int(np.argmax(gains))
        chosen.append(int(order[best]))
        free[best] = False
        left &= ~covered[best]
    return np.sort(np.array(chosen, np.int64))


def _covered(edges: InEdges, order: NDArray[np.int64], hops: int) -> NDArray[np.uint64]:
    """A bit for each of the nodes `order` that is within some hops of each of them, [n, n / 64]."""
    nodes = len(edges.indptr) - 1
    place = np.arange(len(order))
    bits = np.zeros((nodes, -(-len(order) // 64)), np.uint64)
    bits[order, place // 64] = np.left_shift(np.uint64(1), (place % 64).astype(np.uint64))
    # Which rows each hop must know, the last one those of `order` only.
    needed = [order]
    for _ in range(hops - 1):
        around = needed[0]
        at, _ = entries_of(edges.indptr, around)
        needed.insert(0, np.union1d(around, edges.indices[at]))
    for into in needed[:hops]:
        spread = np.zeros_like(bits)
        _spread(edges.indptr, edges.indices, into, bits, spread)
        bits = spread
    return bits[order]


def _ones(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bits that are set in each row, [n]."""
    # NumPy 1.26 has no bitwise_count.
    each = (
        np.bitwise_count(bits) if hasattr(np, "bitwise_count") else np.unpackbits(bits.view(np.uint8), axis=1)
    )
    return each.sum(axis=1, dtype=np.int64)
