"""Minimum spanning arborescences, and packings of many of them by multiplicative weights."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit

__all__ = ["FAR", "pack", "shortest_tree"]

FAR = 1e300
"""Length where there is no edge."""


@njit()
def _links_in(length, root, count):  # type: ignore[no-untyped-def]
    """Shortest edge into each vertex, and the number of the cycle of such edges that it is on, or -1."""
    best, cycle, seen = np.full(count, -1), np.full(count, -1), np.zeros(count, np.int64)
    for v in range(count):
        if v != root:
            best[v] = 0 if v else 1
            for u in range(count):
                if u != v and length[u, v] < length[best[v], v]:
                    best[v] = u
    cycles = 0
    for v in range(count):
        here = v
        while here != root and seen[here] == 0:
            seen[here] = v + 1
            here = best[here]
        if here != root and seen[here] == v + 1:
            on = here
            while cycle[on] < 0:
                cycle[on] = cycles
                on = best[on]
            cycles += 1
    return best, cycle, cycles


@njit()
def _contract(length, root, best, cycle, cycles, label, pick):  # type: ignore[no-untyped-def]
    """Each cycle as one vertex; lengths into it count from the edge that they replace. Returns lengths and size."""
    count, size = len(best), cycles
    for v in range(count):
        label[v] = cycle[v]
        if cycle[v] < 0:
            label[v] = size
            size += 1
    shorter = np.full((size, size), FAR * 10)
    for v in range(count):
        if v == root:
            continue
        less = length[best[v], v] if cycle[v] >= 0 else 0.0
        for u in range(count):
            a, b = label[u], label[v]
            if a != b and length[u, v] - less < shorter[a, b]:
                shorter[a, b] = length[u, v] - less
                pick[a, b, 0], pick[a, b, 1] = u, v
    return shorter, size


@njit()
def shortest_tree(length: NDArray[np.float64], root: int) -> NDArray[np.int64]:
    """Parents in the minimum-length spanning tree from the root; -1 at the root (Chu and Liu; Edmonds 1967).

    Args:
        length: Length from each vertex to each, `FAR` if there is no edge; [n, n].
        root: Root of the tree.
    """
    n = len(length)
    labels = np.zeros((n + 1, n), np.int64)
    picks = np.zeros((n + 1, n, n, 2), np.int64)
    bests = np.zeros((n + 1, n), np.int64)
    sizes = np.zeros(n + 1, np.int64)
    now, here, level = length, root, 0
    while True:
        count = len(now)
        best, cycle, cycles = _links_in(now, here, count)
        bests[level, :count], sizes[level] = best, count
        if cycles == 0:
            break
        now, _ = _contract(now, here, best, cycle, cycles, labels[level], picks[level])
        here = labels[level, here]
        level += 1
    parent = bests[level, : sizes[level]].copy()
    for under in range(level - 1, -1, -1):
        below = bests[under, : sizes[under]].copy()
        for v in range(len(parent)):
            if parent[v] >= 0:
                u = parent[v]
                below[picks[under, u, v, 1]] = picks[under, u, v, 0]
        parent = below
    return parent


@njit()
def _multiplicative(capacity, root, epsilon, delta, both, maximum):  # type: ignore[no-untyped-def]
    n = len(capacity)
    length = np.full((n, n), FAR)
    total = 0.0
    for u in range(n):
        for v in range(n):
            if capacity[u, v] > 0:
                length[u, v] = delta / capacity[u, v]
                total += delta * (0.5 if both else 1.0)
    trees, amounts, count = np.empty((maximum, n), np.int64), np.empty(maximum), 0
    while total < 1.0 and count < maximum:
        tree = shortest_tree(length, root)
        amount = np.inf
        for v in range(n):
            if v != root:
                amount = min(amount, capacity[tree[v], v])
        for v in range(n):
            if v != root:
                u = tree[v]
                more = length[u, v] * epsilon * amount / capacity[u, v]
                length[u, v] += more
                total += more * capacity[u, v]
                if both:
                    length[v, u] = length[u, v]
        trees[count], amounts[count] = tree, amount
        count += 1
    return trees[:count], amounts[:count]


def pack(
    capacity: NDArray[np.float64], root: int, *, both: bool = False, epsilon: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Pack weighted spanning trees into the capacities, near the largest total weight.

    Multiplicative weights in the form of Garg and Könemann (2007): repeatedly take the shortest tree, with edge
    lengths that grow as edges fill. At least 1 - 2 epsilon of the optimum, in O(m log(m) / epsilon**2) trees for m
    edges.

    Args:
        capacity: Capacity from each vertex to each; [n, n]. Symmetric if `both`.
        root: Root of all trees.
        both: Whether a tree uses its edges in both directions, as in an all-reduce.
        epsilon: Approximation parameter; smaller is closer to the optimum, and slower.

    Returns:
        Distinct trees as parents (-1 at the root), [trees, n], and their weights, [trees], the heaviest first.
    """
    edges = int((capacity > 0).sum()) // (2 if both else 1)
    delta = (1 + epsilon) * ((1 + epsilon) * edges) ** (-1 / epsilon)
    most = edges * (2 + math.ceil(math.log((1 + epsilon) / delta) / math.log(1 + epsilon)))
    every, amounts = _multiplicative(np.asarray(capacity, np.float64), root, epsilon, delta, both, most)
    trees, which = np.unique(every, axis=0, return_inverse=True)
    weights = np.bincount(which.ravel(), amounts, len(trees))
    load = np.zeros_like(capacity, dtype=np.float64)
    for tree, weight in zip(trees, weights, strict=True):
        targets = np.flatnonzero(tree >= 0)
        load[tree[targets], targets] += weight
    load = load + load.T if both else load
    used = load > 0
    order = np.argsort(-weights, kind="stable")
    return trees[order], weights[order] / (load[used] / capacity[used]).max()
