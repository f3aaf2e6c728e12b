"""Equal-cost paths from one rank to the others, and the split of a pair's bytes over them: compiled.

Paths have equal cost if their bandwidth, latency and length are those of the best. At each vertex the bytes split
evenly over the next edges of these paths, as many flows do under ECMP hashing, or as on a host with a connection on
each of its network cards.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit

__all__ = ["Arcs", "arcs_of", "routes_from"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SAME = 1e-9
"""Relative difference of latencies that are alike: sums of the same cables in another order differ by less."""


class Arcs(NamedTuple):
    """Edges of a network in arrays, [E], and the edges at each vertex."""

    source: Ints
    target: Ints
    rate: Floats
    latency: Floats
    out_first: Ints
    """First edge that leaves each vertex, as its position in `out`, [V + 1]."""
    out: Ints
    into_first: Ints
    into: Ints


def arcs_of(edges: Sequence[Any], vertices: int) -> Arcs:
    """Convert edges to arrays of `source`, `target`, `bandwidth_bytes_per_s` and `latency_s`."""
    source = np.array([edge.source for edge in edges], np.int64)
    target = np.array([edge.target for edge in edges], np.int64)
    return Arcs(
        source,
        target,
        np.array([edge.bandwidth_bytes_per_s for edge in edges], np.float64),
        np.array([edge.latency_s for edge in edges], np.float64),
        *_by_end(source, vertices),
        *_by_end(target, vertices),
    )


def _by_end(ends: Ints, vertices: int) -> tuple[Ints, Ints]:
    first = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=vertices))]).astype(np.int64)
    return first, np.argsort(ends, kind="stable").astype(np.int64)


@njit()
def _labels(arcs: Arcs, ranks: int, start: int) -> tuple[Floats, Floats, Ints, NDArray[np.bool_]]:
    """Width, latency and hops of the best path to each vertex past no other rank; and whether there is one, [V] each.

    Label-setting: the widest, then the quickest, then the shortest, as widths only fall and latencies only grow.
    """
    count = len(arcs.out_first) - 1
    wide, late, hops = np.zeros(count), np.full(count, np.inf), np.zeros(count, np.int64)
    done = np.zeros(count, np.bool_)
    wide[start], late[start] = np.inf, 0.0
    queue = [(-np.inf, 0.0, 0, start)]
    while queue:
        here = heapq.heappop(queue)[3]
        if done[here]:
            continue
        done[here] = True
        if here < ranks and here != start:
            continue
        for place in range(arcs.out_first[here], arcs.out_first[here + 1]):
            edge = arcs.out[place]
            there = arcs.target[edge]
            label = (-min(wide[here], arcs.rate[edge]), late[here] + arcs.latency[edge], hops[here] + 1)
            if not done[there] and label < (-wide[there], late[there], hops[there]):
                wide[there], late[there], hops[there] = -label[0], label[1], label[2]
                heapq.heappush(queue, (label[0], label[1], label[2], there))
    return wide, late, hops, done


@njit()
def routes_from(
    arcs: Arcs, ranks: int, start: int, hashes: NDArray[np.bool_], seed: int, connections: int
) -> tuple[Ints, Ints, Floats]:
    """Edges of the routes from a rank to each other rank, in the direction of travel, and the byte fraction on each.

    Args:
        arcs: Edges of the network.
        ranks: Number of ranks, which are the first vertices.
        start: Source rank of the routes.
        hashes: Vertices that hash each connection to one of the equal-cost edges, [V].
        seed: Seed of these hashes.
        connections: Connections per pair, each with its own hash.

    Returns:
        Start of each rank's route, [ranks + 1], the edges and the fractions. Ranks without a route, and `start`, have
        none.
    """
    wide, late, hops, done = _labels(arcs, ranks, start)
    count = len(wide)
    tight = np.zeros(len(arcs.source), np.bool_)
    for edge in range(len(tight)):
        a, b = arcs.source[edge], arcs.target[edge]
        passes = done[a] and (a == start or a >= ranks) and hops[b] == hops[a] + 1 and b != start
        tight[edge] = (
            passes
            and min(wide[a], arcs.rate[edge]) == wide[b]
            and late[a] + arcs.latency[edge] <= late[b] * (1 + _SAME)
        )
    first = np.zeros(ranks + 1, np.int64)
    edges, fractions = np.empty(4 * ranks, np.int64), np.empty(4 * ranks)
    total = 0
    leaving, mass = np.zeros(count, np.int64), np.zeros(count)
    passed, seen = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    for end in range(ranks):
        if end != start and done[end]:
            own = _backwards(arcs, tight, hops, end, seen, leaving, mass, passed)
            while total + len(own) > len(edges):
                edges = np.concatenate((edges, np.empty_like(edges)))
                fractions = np.concatenate((fractions, np.empty_like(fractions)))
            mass[start] = 1.0
            for edge in own:
                here = arcs.source[edge]
                part = mass[here] / leaving[here]
                if hashes[here] and leaving[here] > 1:
                    part = mass[here] * _hashed(
                        start, end, here, passed[here], leaving[here], seed, connections
                    )
                    passed[here] += 1
                if part > 0.0:
                    mass[arcs.target[edge]] += part
                    edges[total], fractions[total] = edge, part
                    total += 1
        first[end + 1] = total
    return first, edges[:total].copy(), fractions[:total].copy()


@njit()
def _backwards(
    arcs: Arcs,
    tight: NDArray[np.bool_],
    hops: Ints,
    end: int,
    seen: Ints,
    leaving: Ints,
    mass: Floats,
    passed: Ints,
) -> Ints:
    """Edges of all equal paths to a rank, those nearer to the start first; counts those that leave each vertex."""
    found, open_ = [np.int64(0) for _ in range(0)], [end]
    seen[end], leaving[end], mass[end], passed[end] = end, 0, 0.0, 0
    while open_:
        here = open_.pop()
        for place in range(arcs.into_first[here], arcs.into_first[here + 1]):
            edge = arcs.into[place]
            if not tight[edge]:
                continue
            before = arcs.source[edge]
            if seen[before] != end:
                seen[before], leaving[before], mass[before], passed[before] = end, 0, 0.0, 0
                open_.append(before)
            leaving[before] += 1
            found.append(edge)
    order = np.array([hops[arcs.source[edge]] * len(tight) + edge for edge in found], np.int64)
    return np.array(found, np.int64)[np.argsort(order)]


@njit()
def _hashed(start: int, end: int, here: int, place: int, leaving: int, seed: int, connections: int) -> float:
    """Fraction of the connections of a pair that take the edge of this place of a vertex."""
    took = 0
    for connection in range(connections):
        mixed = np.uint64(seed * 1000003 + connection + 1)
        for part in (start, end, here):
            # The mixing step of splitmix64 (Steele, Lea and Flood 2014).
            mixed = (mixed ^ np.uint64(part)) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        took += np.int64(mixed % np.uint64(leaving)) == place
    return took / connections
