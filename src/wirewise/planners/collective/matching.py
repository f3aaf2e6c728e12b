"""Compiled core of the greedy planner: chunks matched with free links, event by event.

A link is a pair of ranks with the edges of its route. Whenever an edge becomes free or a chunk arrives, the affected
links are visited in random order; a link whose edges are all free takes a chunk that its source holds and that is
useful at its target, if there is one.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit
from wirewise.planners.arrays import Ints, Vector

__all__ = ["Links", "MatchedTransfers", "match"]


_WORD = 64


class Links(NamedTuple):
    """P pairs of R ranks over E edges, for chunks of one size."""

    source: Ints
    """First rank of each pair, [P]."""
    target: Ints
    takes_s: Vector
    """Seconds from the start of a transfer to its arrival, [P]."""
    route_start: Ints
    """First edge of each pair in `route`, [P + 1]."""
    route: Ints
    hold_s: Vector
    """Seconds for which a chunk holds each edge of its route, in the order of `route`."""
    edges: int
    """Number of edges, E."""
    over_start: Ints
    """First pair of each edge in `over`, [E + 1]."""
    over: Ints
    """Pairs whose routes take an edge."""
    out_start: Ints
    """First pair of each rank in `out`, [R + 1]."""
    out: Ints
    """Outgoing pairs of each rank."""
    path_s: Vector
    """Shortest time of a chunk from rank to rank, [R, R]."""


class _State(NamedTuple):
    """K chunks at R ranks, one bit a chunk."""

    held: NDArray[np.uint64]
    """[R, words]"""
    coming: NDArray[np.uint64]
    """Held or on the way, [R, words]."""
    near: Vector
    """Quickest way to each rank from those that hold a chunk or soon will, [K, R]."""
    missing: Ints
    """Ranks that need a chunk and to which it is not on the way, [K]."""
    copies: Ints
    """Ranks that hold a chunk or soon will, [K]."""


class MatchedTransfers(NamedTuple):
    """Transfers ordered by start time."""

    chunk: Ints
    link: Ints
    finish_s: float
    """Arrival of the last chunk; infinite if not all chunks arrived before the deadline."""


@njit()
def match(
    links: Links,
    source: Ints,
    needs: NDArray[np.bool_],
    seed: int,
    by_distance: bool,
    patience: float,
    deadline_s: float,
) -> MatchedTransfers:
    """Run the matching once, in random order.

    A transfer of chunk k to rank j is useful if j needs k, or is nearer to a rank that needs it than all current and
    imminent holders. It must not take longer than `patience` times the fastest path from those to j, and must arrive
    before the deadline.

    Args:
        links: Links of the network.
        source: Rank that holds each chunk, [K].
        needs: Whether a rank still needs a chunk, [K, R].
        seed: Seed of the random order.
        by_distance: Links prefer the chunk with the longest way to go; otherwise the rarest chunk.
        patience: Maximum slowdown relative to the fastest path, as above.
        deadline_s: Latest arrival of a transfer, in seconds.
    """
    np.random.seed(seed)  # noqa: NPY002  (numba knows no generators)
    state = _begin(links, source, needs)
    left = state.missing.sum()
    out_chunk, out_link = np.empty(needs.size, np.int64), np.empty(needs.size, np.int64)
    sent, finish_s = 0, 0.0
    free_s = np.zeros(links.edges)
    marked = np.arange(len(links.source))
    is_marked = np.ones(len(marked), np.bool_)
    count = len(marked)
    # When; the edge that comes free or -1; the transfer that arrives or -1.
    events = [(0.0, np.int64(-1), np.int64(-1))]
    while len(events) > 0 and left > 0 and events[0][0] <= deadline_s:
        now = events[0][0]
        tick = now * (1 + 1e-9) + 1e-15
        while len(events) > 0 and events[0][0] <= tick:
            _, edge, arrival = heapq.heappop(events)
            if edge >= 0:
                count = _mark(links.over_start, links.over, edge, marked, is_marked, count)
            elif arrival >= 0:
                k, target = out_chunk[arrival], links.target[out_link[arrival]]
                state.held[target, k // _WORD] |= np.uint64(1) << np.uint64(k % _WORD)
                count = _mark(links.out_start, links.out, target, marked, is_marked, count)
        np.random.shuffle(marked[:count])  # noqa: NPY002
        for link in marked[:count]:
            is_marked[link] = False
            arrives_s = now + links.takes_s[link]
            if arrives_s > deadline_s or not _is_free(links, link, free_s, tick):
                continue
            k = _choose(state, links, link, needs, by_distance, patience)
            if k < 0:
                continue
            if _take(state, links, link, needs, k):
                left -= 1
                finish_s = max(finish_s, arrives_s)
            out_chunk[sent], out_link[sent] = k, link
            heapq.heappush(events, (arrives_s, np.int64(-1), np.int64(sent)))
            for place in range(links.route_start[link], links.route_start[link + 1]):
                e = links.route[place]
                free_s[e] = now + links.hold_s[place]
                heapq.heappush(events, (free_s[e], e, np.int64(-1)))
            sent += 1
        count = 0
    return MatchedTransfers(out_chunk[:sent], out_link[:sent], finish_s if left == 0 else np.inf)


@njit()
def _begin(links: Links, source: Ints, needs: NDArray[np.bool_]) -> _State:
    chunks, ranks = needs.shape
    words = (chunks + _WORD - 1) // _WORD
    held = np.zeros((ranks, words), np.uint64)
    near = np.empty((chunks, ranks))
    missing = np.zeros(chunks, np.int64)
    for k in range(chunks):
        held[source[k], k // _WORD] |= np.uint64(1) << np.uint64(k % _WORD)
        near[k] = links.path_s[source[k]]
        missing[k] = needs[k].sum()
    return _State(held, held.copy(), near, missing, np.ones(chunks, np.int64))


@njit()
def _take(state: _State, links: Links, link: int, needs: NDArray[np.bool_], k: int) -> bool:
    """A chunk starts over a link; whether its target needs it."""
    j = links.target[link]
    state.coming[j, k // _WORD] |= np.uint64(1) << np.uint64(k % _WORD)
    state.copies[k] += 1
    state.near[k] = np.minimum(state.near[k], links.path_s[j])
    state.missing[k] -= needs[k, j]
    return needs[k, j]


@njit()
def _mark(
    starts: Ints, listed: Ints, which: int, marked: Ints, is_marked: NDArray[np.bool_], count: int
) -> int:
    for link in listed[starts[which] : starts[which + 1]]:
        if not is_marked[link]:
            is_marked[link] = True
            marked[count] = link
            count += 1
    return count


@njit()
def _is_free(links: Links, link: int, free_s: Vector, tick: float) -> bool:
    for e in links.route[links.route_start[link] : links.route_start[link + 1]]:
        if free_s[e] > tick:
            return False
    return True


@njit()
def _choose(
    state: _State, links: Links, link: int, needs: NDArray[np.bool_], by_distance: bool, patience: float
) -> int:
    """The chunk that the link takes, or -1."""
    held, coming = state.held[links.source[link]], state.coming[links.target[link]]
    j, takes_s = links.target[link], links.takes_s[link]
    chunks, words = len(needs), len(held)
    first = np.random.randint(words)  # noqa: NPY002
    turn = np.random.randint(_WORD)  # noqa: NPY002
    best, best_score = -1, -np.inf
    for word in range(first, first + words):
        bits = held[word % words] & ~coming[word % words]
        if bits == 0:
            continue
        for place in range(turn, turn + _WORD):
            if not (bits >> np.uint64(place % _WORD)) & np.uint64(1):
                continue
            k = word % words * _WORD + place % _WORD
            if k >= chunks or state.missing[k] == 0 or takes_s > patience * state.near[k, j]:
                continue
            if not by_distance and -state.copies[k] <= best_score:
                continue
            if not needs[k, j] and not _relays(needs[k], state.near[k], links.path_s[j]):
                continue
            score = _remaining_s(needs[k], state.near[k]) if by_distance else -float(state.copies[k])
            if score > best_score:
                best, best_score = k, score
    return best


@njit()
def _relays(needs: NDArray[np.bool_], near: Vector, from_here: Vector) -> bool:
    for d in range(len(needs)):
        if needs[d] and from_here[d] < near[d] * (1 - 1e-9):
            return True
    return False


@njit()
def _remaining_s(needs: NDArray[np.bool_], near: Vector) -> float:
    furthest = 0.0
    for d in range(len(needs)):
        if needs[d] and near[d] > furthest:
            furthest = near[d]
    return furthest
