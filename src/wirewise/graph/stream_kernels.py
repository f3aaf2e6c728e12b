"""Compiled loops of the streaming partitioner; each reads all edges in order and keeps a few words per node.

Indices from arrays are unsigned, which avoids the check for negative indices, and unpredictable conditions are
computed without a branch.
"""

from __future__ import annotations

import numpy as np

from wirewise.jit import njit

__all__ = [
    "cluster",
    "contract",
    "count_needed",
    "crossing_rows",
    "lower_halo",
    "move_by_counts",
    "move_to_neighbours",
    "place",
    "undirected_csr",
    "weight_cut",
]

_MOST = 255
"""A count of needed rows that stays what it is: such a row is needed for good."""
_SAMPLED = 1024
"""Clusters, or up to twice as many, that tell how many edges would be left, where there are eight times as many."""
_BUFFERED = 64
"""Nodes of which the next to be placed is chosen."""
_LANES = 7
"""Parts whose counts share a word with the owner of a node, a byte each."""
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_OWNER = np.uint64(255 << 8 * _LANES)


@njit()
def undirected_csr(indptr, indices):  # type: ignore[no-untyped-def]
    """Offsets and neighbours of each node, ignoring direction; edges in both directions appear twice."""
    n = len(indptr) - 1
    begin = np.zeros(n + 1, np.int64)
    for v in range(n):
        begin[v + 1] += indptr[v + 1] - indptr[v]
    for u in indices:
        begin[np.uint64(np.uint32(u)) + _ONE] += 1
    for v in range(n):
        begin[v + 1] += begin[v]
    cursor = begin[:-1].copy()
    rows = np.empty(begin[n], np.int32)
    for v in range(n):
        for e in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
            u = np.uint32(indices[e])
            rows[np.uint64(cursor[v])] = u
            rows[np.uint64(cursor[u])] = v
            cursor[v] += 1
            cursor[u] += 1
    return begin, rows


@njit()
def cluster(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weight, node_weight, maximum, first, run, rounds, max_edges, owner
):
    """Cluster nodes by label propagation, int32 [n], numbered from 0: each node joins the cluster it has most edges to.

    Args:
        indptr: Start of the edges of each node, then the end.
        indices: Neighbours of the nodes, node by node.
        edge_weight: Weight of each edge; empty if all are one.
        node_weight: Weight of each node.
        maximum: Maximum weight of a cluster.
        first: First node of each run of successive nodes, in visiting order.
        run: Number of nodes per run.
        rounds: Number of visits per node.
        max_edges: Maximum number of a node's edges to read, the first ones.
        owner: Part of each node, which clusters do not cross; empty if there is none.
    """
    n = len(node_weight)
    label = np.arange(n).astype(np.int32)
    size = node_weight.copy()
    strength = np.zeros(n, np.int32)
    # One more: a cluster that was met before is written behind the last.
    near = np.empty(n + 1, np.int32)
    weighted = len(edge_weight) > 0
    apart = len(owner) > 0
    for _ in range(rounds):
        moves = 0
        for begin_run in first:
            for node in range(begin_run, min(begin_run + run, n)):
                v = np.uint32(node)
                count = np.uint64(0)
                begin = np.uint64(indptr[v])
                for e in range(begin, min(np.uint64(indptr[v + np.uint32(1)]), begin + np.uint64(max_edges))):
                    u = np.uint32(indices[e])
                    if apart and owner[u] != owner[v]:
                        continue
                    of = np.uint32(label[u])
                    known = strength[of]
                    near[count] = of
                    count += np.uint64(known == 0)
                    strength[of] = known + (edge_weight[e] if weighted else 1)
                own = np.uint32(label[v])
                best, most_edges, smallest = own, strength[own], size[own]
                room = maximum - node_weight[v]
                for i in range(count):
                    of = np.uint32(near[i])
                    edges, held = strength[of], size[of]
                    strength[of] = 0
                    better = (edges > most_edges) | ((edges == most_edges) & (held < smallest))
                    if better & (held <= room) & (of != own):
                        best, most_edges, smallest = of, edges, held
                if best != own:
                    size[own] -= node_weight[v]
                    size[best] += node_weight[v]
                    label[v] = best
                    moves += 1
        if moves * 20 < n:
            break
    number = near
    number[:] = -1
    clusters = 0
    for node in range(n):
        of = np.uint32(label[node])
        if number[of] < 0:
            number[of] = clusters
            clusters += 1
        label[node] = number[of]
    return label


@njit()
def contract(indptr, indices, edge_weight, node_weight, label, most_edges):  # type: ignore[no-untyped-def]
    """Contract clusters to a graph: offsets, neighbours, edge weights and node weights.

    Empty if more than the fraction `most_edges` of the edges remains, or would remain according to a sample of many
    clusters.
    """
    n = len(label)
    clusters = 0
    for node in range(n):
        clusters = max(clusters, label[node] + 1)
    weight = np.zeros(clusters, np.int64)
    start = np.zeros(clusters + 1, np.int64)
    for node in range(n):
        c = np.uint32(label[node])
        weight[c] += node_weight[node]
        start[c + np.uint32(1)] += 1
    for number in range(clusters):
        start[number + 1] += start[number]
    cursor = start[:-1].copy()
    member = np.empty(n, np.int32)
    for node in range(n):
        c = np.uint32(label[node])
        member[np.uint64(cursor[c])] = node
        cursor[c] += 1
    begin = np.zeros(clusters + 1, np.int64)
    place_of = np.full(clusters, -1, np.int64)
    step = clusters // _SAMPLED
    if step >= 8 and most_edges < 1:
        looked_at, left = 0, 0
        for number in range(0, clusters, step):
            place_of[number] = number
            for i in range(start[number], start[number + 1]):
                v = np.uint32(member[i])
                looked_at += indptr[v + np.uint32(1)] - indptr[v]
                for e in range(np.uint64(indptr[v]), np.uint64(indptr[v + np.uint32(1)])):
                    other = np.uint32(label[np.uint32(indices[e])])
                    left += place_of[other] != number
                    place_of[other] = number
        if left > most_edges * looked_at:
            return begin[:1], np.empty(0, np.int32), np.empty(0, np.int32), weight[:0]
        place_of[:] = -1
    # Room for every edge, pages that nothing is written to take no memory; one entry more is for edges inside, and one
    # for what follows the last.
    near = np.empty(len(indices) + 2, np.int32)
    joined = np.empty(len(indices) + 2, np.int32)
    weighted = len(edge_weight) > 0
    for number in range(clusters):
        first = begin[number]
        end = first
        place_of[number] = len(indices) + 1
        for i in range(start[number], start[number + 1]):
            v = np.uint32(member[i])
            for e in range(np.uint64(indptr[v]), np.uint64(indptr[v + np.uint32(1)])):
                other = np.uint32(label[np.uint32(indices[e])])
                known = place_of[other]
                fresh = known < first
                at = np.uint64(end if fresh else known)
                place_of[other] = at
                near[at] = other
                # Without a branch: as likely as not the cluster is met first here.
                joined[end] = 0
                joined[at] += edge_weight[e] if weighted else 1
                end += fresh
        place_of[number] = -1
        begin[number + 1] = end
    if begin[clusters] > most_edges * len(indices):
        return begin[:1], near[:0], joined[:0], weight[:0]
    return begin, near[: begin[clusters]], joined[: begin[clusters]], weight


@njit()
def place(indptr, indices, edge_weight, node_weight, parts, bounds, first, run, evenness):  # type: ignore[no-untyped-def]
    """Place nodes in parts one by one by Fennel's score, int32 [n]; next is the node with most placed neighbours.

    The score of a part is the weight of a node's edges into it, minus a cost of the part's weight, scaled by alpha =
    sqrt(parts) * m / w^1.5. Parts at the upper bound accept no more nodes; if none has room, the lightest does. Once
    the remaining nodes only just fill the parts below the lower bound, all go there. Nodes without edges come last
    and fill the remaining room.
    """
    n = len(node_weight)
    order = np.empty(n, np.int32)
    at, alone = 0, n
    for begin_run in first:
        for v in range(begin_run, min(begin_run + run, n)):
            if indptr[v] < indptr[v + 1]:
                order[at] = v
                at += 1
            else:
                alone -= 1
                order[alone] = v
    least, most = bounds
    total = node_weight.sum()
    left, missing = total, least * parts
    edges = edge_weight.sum() / 2 if len(edge_weight) else len(indices) / 2
    alpha = evenness * np.sqrt(parts) * edges / total**1.5
    owner = np.full(n, -1, np.int32)
    load = np.zeros(parts, np.int64)
    into = np.zeros(parts, np.float64)
    placed = np.zeros(n, np.float64)
    degree = np.zeros(n, np.float64)
    if len(edge_weight):
        for v in range(n):
            for e in range(indptr[v], indptr[v + 1]):
                degree[v] += edge_weight[e]
    else:
        degree[:] = indptr[1:] - indptr[:-1]
    # How much of its edges each node of the buffer knows the parts of, and where in it a node is.
    buffer = order[: min(at, _BUFFERED)].copy()
    connected = at
    share = np.zeros(len(buffer), np.float64)
    slot = np.full(n, -1, np.int32)
    for i in range(len(buffer)):
        slot[buffer[i]] = i
    following = len(buffer)
    held = len(buffer)
    while held:
        at = 0
        for i in range(1, held):
            if share[i] > share[at]:
                at = i
        v = buffer[at]
        slot[v] = -1
        if following < connected:
            buffer[at] = order[following]
            following += 1
        else:
            held -= 1
            buffer[at], share[at] = buffer[held], share[held]
        if at < held:
            u = buffer[at]
            slot[u] = at
            share[at] = placed[u] / max(degree[u], 1.0)
        into[:] = 0
        for e in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
            u = np.uint32(indices[e])
            w = edge_weight[e] if len(edge_weight) else 1
            placed[u] += w
            if owner[u] >= 0:
                into[owner[u]] += w
            elif slot[u] >= 0:
                share[slot[u]] = placed[u] / degree[u]
        best, score = -1, 0.0
        scarce = left <= missing
        for p in range(parts):
            if scarce and load[p] >= least:
                continue
            value = into[p] - alpha * 1.5 * np.sqrt(load[p]) * node_weight[v]
            if load[p] + node_weight[v] <= most and (best < 0 or value > score):
                best, score = p, value
        if best < 0:
            best = int(np.argmin(load))
        owner[v] = best
        left -= node_weight[v]
        missing -= min(max(least - load[best], 0), node_weight[v])
        load[best] += node_weight[v]
    for i in range(connected, n):
        v = order[i]
        lightest = np.argmin(load)
        owner[v] = lightest
        load[lightest] += node_weight[v]
    return owner


@njit()
def move_to_neighbours(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weight, node_weight, owner, parts, bounds, first, run, rounds
):
    """Move nodes to the part they have most edges into, if it has room; revisit nodes whose neighbour moved."""
    n = len(owner)
    load = _loads(owner, node_weight, parts)
    into = np.zeros(parts, np.int64)
    changed = np.ones(n, np.bool_)
    weighted = len(edge_weight) > 0
    for _ in range(rounds):
        moves = 0
        for begin_run in first:
            for node in range(begin_run, min(begin_run + run, n)):
                v = np.uint32(node)
                p = owner[v]
                if not (changed[v] or load[p] > bounds[1]):
                    continue
                changed[v] = False
                begin, end = np.uint64(indptr[v]), np.uint64(indptr[v + np.uint32(1)])
                into[:] = 0
                if weighted:
                    for e in range(begin, end):
                        into[np.uint32(owner[np.uint32(indices[e])])] += edge_weight[e]
                else:
                    _add_owners(indices, owner, begin, end, into)
                best = _nearest(into, load, bounds, p, node_weight[v])
                if best == p:
                    continue
                load[p] -= node_weight[v]
                load[best] += node_weight[v]
                owner[v] = best
                moves += 1
                for e in range(begin, end):
                    changed[np.uint32(indices[e])] = True
        if moves * 500 < n:
            break


@njit()
def _loads(owner, node_weight, parts):  # type: ignore[no-untyped-def]
    """Weight of each part, int64 [parts]."""
    load = np.zeros(parts, np.int64)
    for node in range(len(owner)):
        load[np.uint32(owner[node])] += node_weight[node]
    return load


@njit()
def _add_owners(indices, owner, begin, end, into):  # type: ignore[no-untyped-def]
    """Add how many of some neighbours each part owns; where parts are few all at once: lanes of a byte."""
    parts = len(into)
    if parts > _LANES + 1:
        for e in range(begin, end):
            into[np.uint32(owner[np.uint32(indices[e])])] += 1
        return
    eight, byte = np.uint64(8), np.uint64(255)
    while begin < end:
        until = min(end, begin + byte)
        near = np.uint64(0)
        for e in range(begin, until):
            near += _ONE << (eight * np.uint64(np.uint32(owner[np.uint32(indices[e])])))
        for number in range(parts):
            into[number] += np.int64((near >> (eight * np.uint64(number))) & byte)
        begin = until


@njit()
def _nearest(into, load, bounds, p, weight):  # type: ignore[no-untyped-def]
    """The part that a node of part p has most edges into, of those with room; p where it is as good or at its bound."""
    least, most = bounds
    best = p
    if load[p] - weight < least:
        return best
    over = load[p] > most
    for q in range(len(into)):
        if q == p or load[q] + weight > most:
            continue
        if best == p and over:
            best = q
        elif into[q] > into[best] or (into[q] == into[best] and load[q] < load[best] - weight):
            best = q
    return best


@njit()
def weight_cut(indptr, indices, edge_weight, owner):  # type: ignore[no-untyped-def]
    """Weight of the edges between parts, each direction counted."""
    cut = 0
    for v in range(len(owner)):
        for e in range(indptr[v], indptr[v + 1]):
            if owner[indices[e]] != owner[v]:
                cut += edge_weight[e] if len(edge_weight) else 1
    return cut


@njit()
def count_needed(indptr, indices, owner, parts, both):  # type: ignore[no-untyped-def]
    """Out-neighbours of each node in each part, uint8 [nodes, columns], up to `_MOST`.

    There are eight columns if the parts leave room for the node's owner in the last one, so that a node is one word;
    otherwise there is one column per part. `both` means that each edge has its reverse.
    """
    words = parts <= _LANES
    columns = np.uint64(_LANES + 1 if words else parts)
    needed = np.zeros((len(owner), columns), np.uint8)
    flat = needed.reshape(-1)
    if words and both:
        into = np.zeros(parts, np.int64)
        for v in range(len(owner)):
            into[:] = 0
            _add_owners(indices, owner, np.uint64(indptr[v]), np.uint64(indptr[v + 1]), into)
            for part in range(parts):
                flat[np.uint64(v) * columns + np.uint64(part)] = min(into[part], _MOST)
            flat[np.uint64(v) * columns + np.uint64(_LANES)] = owner[v]
        return needed
    for v in range(len(owner)):
        p = np.uint64(owner[v])
        for e in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
            at = np.uint64(np.uint32(indices[e])) * columns + p
            flat[at] += flat[at] < _MOST
        if words:
            flat[np.uint64(v) * columns + np.uint64(_LANES)] = p
    return needed


@njit()
def move_by_counts(  # type: ignore[no-untyped-def]
    indptr, indices, node_weight, owner, needed, parts, bounds, first, run, rounds
):
    """Apply `move_to_neighbours` to a symmetric graph, using the counts of `count_needed`.

    Nodes without a majority of edges into another part are skipped without reading their edges.
    """
    n = len(owner)
    load = _loads(owner, node_weight, parts)
    into = np.zeros(parts, np.int64)
    flat = needed.reshape(-1)
    columns = np.uint64(needed.shape[1])
    for _ in range(rounds):
        moves = 0
        for begin_run in first:
            for node in range(begin_run, min(begin_run + run, n)):
                v = np.uint32(node)
                p = owner[v]
                own = np.uint64(v) * columns
                begin, end = np.uint64(indptr[v]), np.uint64(indptr[v + np.uint32(1)])
                edges = np.int64(end - begin)
                if 2 * np.int64(flat[own + np.uint64(p)]) > edges and load[p] <= bounds[1]:
                    continue
                into[:] = 0
                if edges <= _MOST:
                    for q in range(parts):
                        into[q] = flat[own + np.uint64(q)]
                else:
                    _add_owners(indices, owner, begin, end, into)
                best = _nearest(into, load, bounds, p, node_weight[v])
                if best == p:
                    continue
                load[p] -= node_weight[v]
                load[best] += node_weight[v]
                _give(flat, columns, indices, begin, end, np.uint64(p), np.uint64(best))
                owner[v] = best
                if parts <= _LANES:
                    flat[own + np.uint64(_LANES)] = best
                moves += 1
        if moves * 500 < n:
            break


@njit()
def _give(flat, columns, indices, begin, end, p, q):  # type: ignore[no-untyped-def]
    """Count an out-neighbour of some nodes in part q, no longer in p."""
    for e in range(begin, end):
        row = np.uint64(np.uint32(indices[e])) * columns
        flat[row + p] -= flat[row + p] < _MOST
        flat[row + q] += flat[row + q] < _MOST


@njit()
def crossing_rows(owner, needed, parts):  # type: ignore[no-untyped-def]
    """Number of rows that parts need from other owners, from the counts of `count_needed` and `lower_halo`."""
    rows = 0
    for v in range(len(owner)):
        for q in range(parts):
            rows += q != owner[v] and needed[v, q] > 0
    return rows


@njit()
def lower_halo(  # type: ignore[no-untyped-def]
    indptr, indices, node_weight, owner, needed, parts, bounds, first, run, rounds, both
):
    """Move nodes one by one to the part that minimises the rows crossing between parts; updates `needed`.

    `both` means that each edge has its reverse, so that a node with all out-neighbours in its part has all neighbours
    there.
    """
    least_load, most_load = bounds
    n = len(owner)
    words = parts <= _LANES
    flat = needed.reshape(-1)
    word = flat.view(np.uint64) if words else np.empty(0, np.uint64)
    columns = np.uint64(needed.shape[1])
    last = np.uint64(_LANES)
    load = _loads(owner, node_weight, parts)
    added = np.zeros(parts, np.int64)
    into = np.zeros(parts, np.int64)
    changed = np.ones(n, np.bool_)
    for _ in range(rounds):
        moves = 0
        for begin_run in first:
            for node in range(begin_run, min(begin_run + run, n)):
                v = np.uint32(node)
                if not changed[v]:
                    continue
                changed[v] = False
                p = np.uint64(owner[v])
                if load[p] - node_weight[v] < least_load:
                    continue
                own = np.uint64(v) * columns
                begin, end = np.uint64(indptr[v]), np.uint64(indptr[v + np.uint32(1)])
                away = False
                if words:
                    away = word[v] & ~((np.uint64(255) << (np.uint64(8) * p)) | _OWNER) != np.uint64(0)
                else:
                    for part in range(parts):
                        away |= (np.uint64(part) != p) & (flat[own + np.uint64(part)] > 0)
                if not (away or both):
                    for e in range(begin, end):
                        if np.uint64(owner[np.uint32(indices[e])]) != p:
                            away = True
                            break
                if not away:
                    continue
                into[:] = 0
                freed = 0
                if words:
                    freed = _count_words(word, indices, begin, end, p, added, into)
                else:
                    freed = _count_bytes(flat, owner, indices, begin, end, p, added, into)
                best, least = p, 0
                for part in range(parts):
                    q = np.uint64(part)
                    if q == p or load[q] + node_weight[v] > most_load:
                        continue
                    change = added[q] - freed + (flat[own + p] > 0) - (flat[own + q] > 0)
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
                _give(flat, columns, indices, begin, end, p, best)
                for e in range(begin, end):
                    changed[np.uint32(indices[e])] = True
                load[p] -= node_weight[v]
                load[best] += node_weight[v]
                owner[v] = best
                if words:
                    flat[own + last] = best
                moves += 1
        if moves * 500 < n:
            break
    return owner


@njit()
def _count_bytes(flat, owner, indices, begin, end, p, added, into):  # type: ignore[no-untyped-def]
    """Rows that each part would need more with a node of these in-neighbours, and neighbours in each; freed ones."""
    parts = np.uint64(len(added))
    added[:] = 0
    freed = 0
    for e in range(begin, end):
        u = np.uint32(indices[e])
        a = np.uint64(owner[u])
        row = np.uint64(u) * parts
        into[a] += 1
        freed += (a != p) & (flat[row + p] == 1)
        added[a] -= flat[row + a] == 0
        for q in range(parts):
            added[q] += flat[row + q] == 0
    return freed


@njit()
def _count_words(word, indices, begin, end, p, added, into):  # type: ignore[no-untyped-def]
    """The counts of `_count_bytes`, all parts at once: lanes of a byte, emptied before they overflow."""
    lanes, eight, byte = np.uint64(_LANES), np.uint64(8), np.uint64(255)
    added[:] = np.int64(end - begin)
    freed = 0
    while begin < end:
        until = min(end, begin + byte)
        has, near = np.uint64(0), np.uint64(0)
        for e in range(begin, until):
            found = word[np.uint32(indices[e])]
            a = found >> (eight * lanes)
            one = _ONE << (eight * a)
            # The high bit of each byte that is not 0, then a one in its place; and one for the part of the node.
            has += (((((found & _LOW) + _LOW) | found) & _HIGH) >> lanes) | one
            near += one
            freed += (a != p) & (((found >> (eight * p)) & byte) == _ONE)
        for number in range(len(added)):
            shift = eight * np.uint64(number)
            added[number] -= np.int64((has >> shift) & byte)
            into[number] += np.int64((near >> shift) & byte)
        begin = until
    return freed
