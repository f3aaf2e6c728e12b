"""Maximum flows in integers, and integer capacities of a network.

Bounds and tree packings need thousands of flows on one graph with changing capacities, and exact answers: bandwidths
become integers of a common unit, and flows are computed by Dinic's algorithm.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wirewise import work
from wirewise.collective.network import Network
from wirewise.jit import njit

__all__ = ["UNBOUNDED", "Capacities", "FlowGraph", "capacities"]

UNBOUNDED = 1 << 61
"""Capacity of an arc that never limits a flow."""
_FLOW_S, _ARC_S = 2e-5, 1.5e-7
"""Work of a flow, and its part that grows with the arcs."""


class Capacities(NamedTuple):
    """Edges of a network, with bandwidths as integers of a unit."""

    vertices: int
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    amounts: NDArray[np.int64]
    unit_bytes_per_s: Fraction

    @property
    def reverse(self) -> Capacities:
        """Capacities with every edge reversed."""
        return self._replace(sources=self.targets, targets=self.sources)

    def leaving(self, inside: NDArray[np.bool_]) -> int:
        """Capacity of the edges from vertices inside to vertices outside."""
        return int(self.amounts[inside[self.sources] & ~inside[self.targets]].sum())


def capacities(network: Network) -> Capacities:
    """Convert the bandwidths of a network to integers: exact if they have a usable common unit, else rounded up.

    Flows times the number of vertices fit into 64 bits. Rounding is below 2**-50 of the sum of all bandwidths.
    """
    rates = [Fraction(edge.bandwidth_bytes_per_s) for edge in network.edges]
    common = math.lcm(*(rate.denominator for rate in rates))
    wholes = [int(rate * common) for rate in rates]
    unit = max(math.gcd(*wholes), 1)
    room = UNBOUNDED // (4 * max(len(network.vertices), 1))
    while sum(-(-whole // unit) for whole in wholes) > room:
        unit *= 2
    return Capacities(
        len(network.vertices),
        np.array([edge.source for edge in network.edges], np.int64),
        np.array([edge.target for edge in network.edges], np.int64),
        np.array([-(-whole // unit) for whole in wholes], np.int64),
        Fraction(unit, common),
    )


class FlowGraph:
    """Arcs between vertices, prepared for many flows.

    Args:
        vertices: Number of vertices.
        sources: Tail of each arc; [arcs].
        targets: Head of each arc; [arcs].
    """

    def __init__(self, vertices: int, sources: ArrayLike, targets: ArrayLike) -> None:
        tails, heads = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        # Arc n becomes the arcs 2n and 2n + 1 of the residual graph: there and back.
        ends = np.stack([tails, heads], axis=1).ravel()
        self._to = np.stack([heads, tails], axis=1).ravel()
        self._arcs = np.argsort(ends, kind="stable")
        self._first = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=vertices))]).astype(np.int64)

    def flow(self, amounts: ArrayLike, source: int, sink: int, enough: int = UNBOUNDED) -> int:
        """Maximum flow; may stop early once it is at least `enough`. `amounts` are the arcs' capacities; [arcs]."""
        return self._run(amounts, source, sink, enough)[0]

    def cut(self, amounts: ArrayLike, source: int, sink: int) -> tuple[int, NDArray[np.bool_]]:
        """Maximum flow, and the source's side of the smallest minimum cut; [vertices]."""
        value, level, _ = self._run(amounts, source, sink, UNBOUNDED)
        return value, level >= 0

    def arc_flows(self, amounts: ArrayLike, source: int, sink: int) -> NDArray[np.int64]:
        """Flow on each arc of a maximum flow; [arcs]."""
        return self._run(amounts, source, sink, UNBOUNDED)[2][1::2]

    def _run(
        self, amounts: ArrayLike, source: int, sink: int, enough: int
    ) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        given = np.asarray(amounts, np.int64)
        left = np.zeros(2 * len(given), np.int64)
        left[::2] = given
        level = np.empty(len(self._first) - 1, np.int64)
        work.charge(_FLOW_S + _ARC_S * len(given))
        value = _dinic(self._first, self._arcs, self._to, left, level, source, sink, enough)
        return int(value), level, left


def _levels(first, arcs, to, left, level, source):  # type: ignore[no-untyped-def]
    """Distances from the source over arcs with capacity left; -1: out of reach."""
    queue = np.empty(len(level), np.int64)
    level[:] = -1
    level[source], queue[0] = 0, source
    done, known = 0, 1
    while done < known:
        here = queue[done]
        done += 1
        for place in range(first[here], first[here + 1]):
            arc = arcs[place]
            if left[arc] > 0 and level[to[arc]] < 0:
                level[to[arc]] = level[here] + 1
                queue[known] = to[arc]
                known += 1


def _augment(first, arcs, to, left, level, pointer, path, source, sink):  # type: ignore[no-untyped-def]
    """Send along one path of rising levels; returns what was sent, 0 when no path is left."""
    depth, here = 0, source
    while here != sink:
        found = False
        while pointer[here] < first[here + 1]:
            arc = arcs[pointer[here]]
            if left[arc] > 0 and level[to[arc]] == level[here] + 1:
                found = True
                break
            pointer[here] += 1
        if found:
            path[depth] = arc
            depth += 1
            here = to[arc]
        elif here == source:
            return 0
        else:
            depth -= 1
            here = to[path[depth] ^ 1]
            pointer[here] += 1
    sent = left[path[0]]
    for place in range(1, depth):
        sent = min(sent, left[path[place]])
    for place in range(depth):
        left[path[place]] -= sent
        left[path[place] ^ 1] += sent
    return sent


def _flow(first, arcs, to, left, level, source, sink, enough):  # type: ignore[no-untyped-def]
    """Dinic's algorithm; leaves the levels of its last search in `level`."""
    path, total = np.empty(len(level), np.int64), 0
    while total < enough:
        levels_of(first, arcs, to, left, level, source)
        if level[sink] < 0:
            break
        pointer = first[:-1].copy()
        sent = augment(first, arcs, to, left, level, pointer, path, source, sink)
        while sent > 0:
            total += sent
            sent = augment(first, arcs, to, left, level, pointer, path, source, sink)
    return total


levels_of = njit()(_levels)
augment = njit()(_augment)
_dinic = njit()(_flow)
