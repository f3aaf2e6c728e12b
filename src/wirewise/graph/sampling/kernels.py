"""Inner loop of the neighbour sampler, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["draw", "edge_room", "enter", "expand", "number"]

_FEW = 64
"""Most picks that are compared one by one; more are drawn by a shuffle."""
_HALF = 32
_LOW = (1 << _HALF) - 1


@njit()
def edge_room(indptr: NDArray[np.int64], nodes: NDArray[np.int64], fanout: int) -> int:
    """Number of edges that `expand` writes for these nodes."""
    room = 0
    for node in nodes:
        degree = indptr[node + 1] - indptr[node]
        room += degree if fanout < 0 or degree < fanout else fanout
    return room


@njit()
def enter(nodes: NDArray[np.int64], table: NDArray[np.int64], tag: int) -> int:
    """Number the nodes 0, 1, ... in the table; returns the first duplicate, or -1."""
    for place in range(len(nodes)):
        if table[nodes[place]] >> _HALF == tag:
            return place
        table[nodes[place]] = (tag << _HALF) | place
    return -1


@njit(inline="always")
def _below(key: int, draw: int, bound: int) -> int:
    """A number from 0 to bound - 1; off uniform by at most bound / 2^32."""
    word = mix32(np.uint32(np.uint32(key) + np.uint32(draw) * np.uint32(GOLDEN)))
    return (int(word) * bound) >> _HALF


@njit()
def _pick(key: int, degree: int, picks: NDArray[np.int64], deck: NDArray[np.int64]) -> NDArray[np.int64]:
    """`len(picks)` of `degree` places without replacement, all sets equally likely.

    Floyd's method (Bentley and Floyd, CACM 30(9), 1987), or a shuffle's beginning where there are many.
    """
    count = len(picks)
    if count > _FEW:
        if len(deck) < degree:
            deck = np.empty(2 * degree, np.int64)
        for place in range(degree):
            deck[place] = place
        for draw in range(count):
            other = draw + _below(key, draw, degree - draw)
            picks[draw] = deck[other]
            deck[other] = deck[draw]
        return deck
    for draw in range(count):
        last = degree - count + draw
        pick = _below(key, draw, last + 1)
        for earlier in range(draw):
            if picks[earlier] == pick:
                pick = last
                break
        picks[draw] = pick
    return deck


@njit()
def expand(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    nodes: NDArray[np.int64],
    begin: int,
    end: int,
    count: int,
    fanout: int,
    key: int,
    table: NDArray[np.int64],
    tag: int,
    sums: NDArray[np.int64],
    sources: NDArray[np.int32],
    e_id: NDArray[np.int64],
) -> int:
    """Sample neighbours of `nodes[begin:end]`, and number the new ones.

    Args:
        indptr: In-neighbours of all nodes, [N + 1].
        indices: Sources of all edges, [E].
        nodes: Global ids by local number; new ones are appended.
        begin: First local number to expand.
        end: End of the local numbers to expand, exclusive.
        count: Number of nodes so far.
        fanout: Neighbours per node; below 0 for all.
        key: Key of the hop, 32 bits.
        table: [N]: tag and local number of each node in the batch.
        tag: Tag of the batch.
        sums: Edges before each local number; entries after `begin` are written.
        sources: Local number of each edge's source; written from `sums[begin]` on.
        e_id: Output for the position of each edge in `indices`, as long as `sources`; empty to leave it out.

    Returns:
        Number of nodes afterwards.
    """
    picks, deck = np.empty(max(fanout, 0), np.int64), np.empty(0, np.int64)
    edge, numbered = sums[begin], len(e_id) > 0
    for target in range(begin, end):
        node = nodes[target]
        start = indptr[node]
        degree = indptr[node + 1] - start
        drawn = 0 <= fanout < degree
        if drawn:
            deck = _pick(row_key(key, node), degree, picks, deck)
        for place in range(fanout if drawn else degree):
            position = start + (picks[place] if drawn else place)
            source = indices[position]
            if numbered:
                e_id[edge] = position
            entry = table[source]
            if entry >> _HALF == tag:
                sources[edge] = entry & _LOW
            else:
                table[source] = (tag << _HALF) | count
                nodes[count] = source
                sources[edge] = count
                count += 1
            edge += 1
        sums[target + 1] = edge
    return count


@njit()
def draw(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    rows: NDArray[np.int32],
    first: int,
    fanout: int,
    key: int,
    degrees: NDArray[np.int32],
    sources: NDArray[np.int32],
) -> None:
    """Sample the same neighbours as `expand` for nodes of a part: global ids, without numbering them.

    Args:
        indptr: In-neighbours of the part's nodes, [n + 1].
        indices: Sources of these edges, as global ids.
        rows: Indices of the nodes in the part.
        first: Global id of the part's first node.
        fanout: Neighbours per node; below 0 for all.
        key: Key of the hop, 32 bits.
        degrees: Output for the number of neighbours sampled per node.
        sources: Output for the neighbours, of `edge_room` entries.
    """
    picks, deck, edge = np.empty(max(fanout, 0), np.int64), np.empty(0, np.int64), 0
    for place in range(len(rows)):
        start = indptr[rows[place]]
        degree = indptr[rows[place] + 1] - start
        drawn = 0 <= fanout < degree
        if drawn:
            deck = _pick(row_key(key, first + rows[place]), degree, picks, deck)
        degrees[place] = fanout if drawn else degree
        for other in range(degrees[place]):
            sources[edge] = indices[start + (picks[other] if drawn else other)]
            edge += 1


@njit()
def number(
    neighbours: NDArray[np.int32],
    nodes: NDArray[np.int64],
    count: int,
    table: NDArray[np.int64],
    tag: int,
    sources: NDArray[np.int32],
) -> int:
    """Number sampled neighbours locally, as `expand` does; appends new nodes, and returns the number of nodes."""
    for edge in range(len(neighbours)):
        entry = table[neighbours[edge]]
        if entry >> _HALF == tag:
            sources[edge] = entry & _LOW
        else:
            table[neighbours[edge]] = (tag << _HALF) | count
            nodes[count] = neighbours[edge]
            sources[edge] = count
            count += 1
    return count
