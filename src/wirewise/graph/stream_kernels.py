"""Loops of the partition by streaming, compiled; each reads all edges in turn and keeps little for a node."""

from __future__ import annotations

import numba
import numpy as np

__all__ = [
    "cluster",
    "contract",
    "count_needed",
    "lower_halo",
    "move_to_neighbours",
    "place",
    "weight_cut",
]

_MOST = 255
"""A count of needed rows that stays what it is: such a row is needed for good."""


@numba.njit(nogil=True, cache=True)
def cluster(indptr, indices, edge_weight, node_weight, most, order, rounds, looked_at, owner):  # type: ignore[no-untyped-def]
    """Cluster of each node, int32 [n], numbered from 0: nodes join the cluster that they have most edges to.

    Args:
        indptr: Begin of the edges of each node, then the end.
        indices: Neighbours of the nodes, node by node.
        edge_weight: Weight of each edge; empty: one.
        node_weight: Weight of each node.
        most: Largest weight of a cluster.
        order: Nodes in the order in which they are visited.
        rounds: Visits of each node.
        looked_at: Edges of a node that are looked at, the first ones.
        owner: Part of each node, which clusters do not cross; empty: there are no parts yet.
    """
    n = len(node_weight)
    label = np.arange(n).astype(np.int32)
    size = node_weight.copy()
    strength = np.zeros(n, np.int64)
    near = np.empty(n, np.int32)
    for _ in range(rounds):
        moves = 0
        for v in order:
            count = 0
            for e in range(indptr[v], min(indptr[v + 1], indptr[v] + looked_at)):
                u = indices[e]
                if len(owner) and owner[u] != owner[v]:
                    continue
                of = label[u]
                if strength[of] == 0:
                    near[count] = of
                    count += 1
                strength[of] += edge_weight[e] if len(edge_weight) else 1
            own = label[v]
            best, most_edges = own, strength[own]
            for i in range(count):
                of = near[i]
                better = strength[of] > most_edges or (strength[of] == most_edges and size[of] < size[best])
                if of != own and better and size[of] + node_weight[v] <= most:
                    best, most_edges = of, strength[of]
            for i in range(count):
                strength[near[i]] = 0
            if best != own:
                size[own] -= node_weight[v]
                size[best] += node_weight[v]
                label[v] = best
                moves += 1
        if moves * 20 < n:
            break
    number = near
    number[:] = -1
    count = 0
    for v in range(n):
        if number[label[v]] < 0:
            number[label[v]] = count
            count += 1
        label[v] = number[label[v]]
    return label


@numba.njit(nogil=True, cache=True)
def contract(indptr, indices, edge_weight, node_weight, label):  # type: ignore[no-untyped-def]
    """The graph of the clusters: offsets, neighbours, weights of edges and of nodes."""
    n = len(label)
    clusters = 0
    for v in range(n):
        clusters = max(clusters, label[v] + 1)
    weight = np.zeros(clusters, np.int64)
    start = np.zeros(clusters + 1, np.int64)
    for v in range(n):
        weight[label[v]] += node_weight[v]
        start[label[v] + 1] += 1
    start = np.cumsum(start)
    cursor = start[:-1].copy()
    member = np.empty(n, np.int32)
    for v in range(n):
        member[cursor[label[v]]] = v
        cursor[label[v]] += 1
    begin = np.zeros(clusters + 1, np.int64)
    place_of = np.full(clusters, -1, np.int64)
    # Room for every edge: pages that nothing is written to take no memory.
    near = np.empty(len(indices), np.int32)
    joined = np.empty(len(indices), np.int32)
    for c in range(clusters):
        end = begin[c]
        for i in range(start[c], start[c + 1]):
            v = member[i]
            for e in range(indptr[v], indptr[v + 1]):
                other = label[indices[e]]
                if other == c:
                    continue
                if place_of[other] < begin[c]:
                    place_of[other] = end
                    near[end] = other
                    joined[end] = 0
                    end += 1
                joined[place_of[other]] += edge_weight[e] if len(edge_weight) else 1
        begin[c + 1] = end
    near, joined = near[: begin[clusters]], joined[: begin[clusters]]
    return begin, near, joined, weight


@numba.njit(nogil=True, cache=True)
def place(indptr, indices, edge_weight, node_weight, parts, limit, order, evenness):  # type: ignore[no-untyped-def]
    """Part of each node, int32 [n]: placed one by one by Fennel's score, next the one with most placed neighbours.

    The score of a part is the weight of a node's edges into it, less the cost of the part's weight, whose scale is
    that of the edges: alpha = sqrt(parts) * m / w^1.5. Parts at `limit` take no more; where none has
    room, the lightest does.
    """
    n = len(node_weight)
    total = node_weight.sum()
    edges = edge_weight.sum() / 2 if len(edge_weight) else len(indices) / 2
    alpha = evenness * np.sqrt(parts) * edges / total**1.5
    owner = np.full(n, -1, np.int32)
    load = np.zeros(parts, np.int64)
    into = np.zeros(parts, np.float64)
    placed = np.zeros(n, np.float64)
    degree = np.zeros(n, np.float64)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            degree[v] += edge_weight[e] if len(edge_weight) else 1
    buffer = order[: min(n, 64)].copy()
    following = len(buffer)
    held = len(buffer)
    while held:
        # Of the nodes in the buffer, the one that knows most of its neighbours' parts.
        at, share = 0, -1.0
        for i in range(held):
            now = placed[buffer[i]] / max(degree[buffer[i]], 1.0)
            if now > share:
                at, share = i, now
        v = buffer[at]
        if following < n:
            buffer[at] = order[following]
            following += 1
        else:
            held -= 1
            buffer[at] = buffer[held]
        into[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            w = edge_weight[e] if len(edge_weight) else 1
            placed[u] += w
            if owner[u] >= 0:
                into[owner[u]] += w
        best, score = -1, 0.0
        for p in range(parts):
            value = into[p] - alpha * 1.5 * np.sqrt(load[p]) * node_weight[v]
            if load[p] + node_weight[v] <= limit and (best < 0 or value > score):
                best, score = p, value
        if best < 0:
            best = int(np.argmin(load))
        owner[v] = best
        load[best] += node_weight[v]
    return owner


@numba.njit(nogil=True, cache=True)
def move_to_neighbours(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weight, node_weight, owner, parts, limit, order, rounds
):
    """Move nodes to the part that they have most edges into, where there is room; again where a neighbour moved."""
    load = np.zeros(parts, np.int64)
    for v in range(len(owner)):
        load[owner[v]] += node_weight[v]
    into = np.zeros(parts, np.int64)
    changed = np.ones(len(owner), np.bool_)
    for _ in range(rounds):
        moves = 0
        for v in order:
            p = owner[v]
            over = load[p] > limit
            if not (changed[v] or over):
                continue
            changed[v] = False
            into[:] = 0
            for e in range(indptr[v], indptr[v + 1]):
                into[owner[indices[e]]] += edge_weight[e] if len(edge_weight) else 1
            best = p
            for q in range(parts):
                if q == p or load[q] + node_weight[v] > limit:
                    continue
                if best == p and over:
                    best = q
                elif into[q] > into[best] or (
                    into[q] == into[best] and load[q] < load[best] - node_weight[v]
                ):
                    best = q
            if best == p:
                continue
            load[p] -= node_weight[v]
            load[best] += node_weight[v]
            owner[v] = best
            moves += 1
            for e in range(indptr[v], indptr[v + 1]):
                changed[indices[e]] = True
        if moves * 500 < len(owner):
            break


@numba.njit(nogil=True, cache=True)
def weight_cut(indptr, indices, edge_weight, owner):  # type: ignore[no-untyped-def]
    """Weight of the edges between parts, each direction counted."""
    cut = 0
    for v in range(len(owner)):
        for e in range(indptr[v], indptr[v + 1]):
            if owner[indices[e]] != owner[v]:
                cut += edge_weight[e] if len(edge_weight) else 1
    return cut


@numba.njit(nogil=True, cache=True)
def count_needed(indptr, indices, owner, parts):  # type: ignore[no-untyped-def]
    """Out-neighbours of each node in each part, uint8 [nodes, parts], up to `_MOST`."""
    needed = np.zeros((len(owner), parts), np.uint8)
    for v in range(len(owner)):
        for e in range(indptr[v], indptr[v + 1]):
            if needed[indices[e], owner[v]] < _MOST:
                needed[indices[e], owner[v]] += 1
    return needed


@numba.njit(nogil=True, cache=True)
def lower_halo(  # type: ignore[no-untyped-def]
    indptr, indices, node_weight, owner, needed, limit, order, rounds
):
    """Move nodes one by one to where fewest rows cross between parts; `needed` is kept up to date."""
    parts = needed.shape[1]
    load = np.zeros(parts, np.int64)
    for v in range(len(owner)):
        load[owner[v]] += node_weight[v]
    added = np.zeros(parts, np.int64)
    into = np.zeros(parts, np.int64)
    changed = np.ones(len(owner), np.bool_)
    for _ in range(rounds):
        moves = 0
        for v in order:
            if not changed[v]:
                continue
            changed[v] = False
            p = owner[v]
            away = False
            for q in range(parts):
                away |= q != p and needed[v, q] > 0
            if not away:
                for e in range(indptr[v], indptr[v + 1]):
                    if owner[indices[e]] != p:
                        away = True
                        break
            if not away:
                continue
            added[:] = 0
            into[:] = 0
            freed = 0
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                a = owner[u]
                into[a] += 1
                if a != p and needed[u, p] == 1:
                    freed += 1
                for q in range(parts):
                    added[q] += q != a and needed[u, q] == 0
            best, least = p, 0
            for q in range(parts):
                if q == p or load[q] + node_weight[v] > limit:
                    continue
                change = added[q] - freed + (needed[v, p] > 0) - (needed[v, q] > 0)
                if change < least or (
                    change == least
                    and (
                        into[q] > into[best]
                        or (into[q] == into[best] and load[q] + node_weight[v] < load[best])
                    )
                ):
                    best, least = q, change
            if best == p:
                continue
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if needed[u, p] < _MOST:
                    needed[u, p] -= 1
                if needed[u, best] < _MOST:
                    needed[u, best] += 1
                changed[u] = True
            load[p] -= node_weight[v]
            load[best] += node_weight[v]
            owner[v] = best
            moves += 1
        if moves * 500 < len(owner):
            break
    return owner
