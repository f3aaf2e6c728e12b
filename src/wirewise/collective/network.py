"""A topology as a graph of capacities: what bounds and planners of collectives work on."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import TopologyError
from wirewise.topology import Topology

__all__ = ["Edge", "Network", "RouteTable", "network"]


class Edge(NamedTuple):
    """One direction of a link."""

    source: int
    target: int
    bandwidth_bytes_per_s: float
    latency_s: float


class RouteTable(NamedTuple):
    """The routes [P] of a network in arrays, by source, then by target."""

    pair: NDArray[np.int64]
    """Source times the number of ranks plus target, ascending, [P]."""
    first: NDArray[np.int64]
    """Where the edges of each route begin in `edges`, [P + 1]."""
    edges: NDArray[np.int64]
    latency_s: NDArray[np.float64]
    """Sum over a route's edges, [P]."""
    rate_bytes_per_s: NDArray[np.float64]
    """Rate of a route's narrowest edge, [P]."""


class Network(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Vertices and directed edges; the ranks are the first vertices, hosts and switches follow.

    Hosts and switches pass on what reaches them. A rank passes on only by a transfer of its own.
    """

    name: str
    ranks: int
    vertices: tuple[str, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the edges that leave each vertex."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for number, edge in enumerate(self.edges):
            found[edge.source].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {(s, t): path for s in range(self.ranks) for t, path in self.routes_from(s).items()}

    @cached_property
    def table(self) -> RouteTable:
        """All routes at once."""
        ends = np.fromiter((s * self.ranks + t for s, t in self._routes), np.int64, len(self._routes))
        order, paths = np.argsort(ends), list(self._routes.values())
        return self.table_of(ends[order], [paths[row] for row in order])

    def table_of(self, pair: NDArray[np.int64], routes: Sequence[tuple[int, ...]]) -> RouteTable:
        """Some routes as a table; arguments as its fields, each route by the numbers of its edges."""
        first = np.cumsum([0, *map(len, routes)])
        edges = np.fromiter(itertools.chain.from_iterable(routes), np.int64, first[-1])
        latency_s = np.array([e.latency_s for e in self.edges])[edges]
        rate = np.array([e.bandwidth_bytes_per_s for e in self.edges])[edges]
        if not len(edges):
            return RouteTable(pair, first, edges, latency_s, rate)
        return RouteTable(
            pair=pair,
            first=first,
            edges=edges,
            latency_s=np.add.reduceat(latency_s, first[:-1]),
            rate_bytes_per_s=np.minimum.reduceat(rate, first[:-1]),
        )

    @cached_property
    def routed(self) -> Network:
        """The network of those edges that some route takes, which are all that programs use."""
        used = np.unique(self.table.edges)
        if len(used) == len(self.edges):
            return self
        return msgspec.structs.replace(self, edges=tuple(self.edges[edge] for edge in used))

    def route(self, source: int, target: int) -> tuple[int, ...] | None:
        """Edges that a transfer between two ranks takes: the widest path past no other rank, then the quickest.

        Returns:
            Numbers of edges in the direction of travel; None: only other ranks could pass it on.
        """
        return self._routes.get((source, target))

    def rate(self, source: int, target: int) -> float:
        """Bytes per second of the narrowest edge of `route`; 0 where there is no route."""
        path = self.route(source, target)
        return min(self.edges[e].bandwidth_bytes_per_s for e in path) if path else 0.0

    def latency(self, source: int, target: int) -> float:
        """Seconds of `route`, summed; infinite where there is no route."""
        path = self.route(source, target)
        return sum(self.edges[e].latency_s for e in path) if path else float("inf")

    def neighbours(self, source: int) -> tuple[int, ...]:
        """Ranks that a transfer from `source` can go to."""
        return tuple(t for t in range(self.ranks) if (source, t) in self._routes)

    def routes_from(self, source: int) -> dict[int, tuple[int, ...]]:
        """Routes from a rank to the others, by target: label-setting, as widths only fall and latencies only grow."""
        best: dict[int, tuple[float, float, int]] = {source: (float("-inf"), 0.0, 0)}
        paths: dict[int, tuple[int, ...]] = {source: ()}
        queue, done = [(best[source], source)], set[int]()
        while queue:
            (width, latency, hops), here = heapq.heappop(queue)
            if here in done:
                continue
            done.add(here)
            if here < self.ranks and here != source:
                continue
            for number in self.leaving[here]:
                edge = self.edges[number]
                label = (max(width, -edge.bandwidth_bytes_per_s), latency + edge.latency_s, hops + 1)
                if edge.target not in done and label < best.get(edge.target, (float("inf"), 0.0, 0)):
                    best[edge.target], paths[edge.target] = label, (*paths[here], number)
                    heapq.heappush(queue, (label, edge.target))
        return {t: path for t, path in paths.items() if t < self.ranks and t != source}


def network(
    topology: Topology, kinds: Collection[str] | None = None, ranks: Collection[str] | None = None
) -> Network:
    """The graph of a topology.

    Args:
        topology: Topology to turn into a graph.
        kinds: Kinds of links to keep, such as {"nvlink"}; None: all.
        ranks: Names of the ranks to keep, such as the devices that a job was given; None: all.

    Raises:
        TopologyError: A rank that does not exist, or ranks that no path joins; the message names them.
    """
    unknown = sorted(set(ranks or ()) - set(topology.ranks))
    if unknown:
        raise TopologyError(
            f"topology {topology.name!r} has no rank {unknown[0]!r}; expected {', '.join(topology.ranks)}"
        )
    kept = [r for r in topology.ranks if ranks is None or r in set(ranks)]
    left_out = set(topology.ranks) - set(kept)
    others = [
        v.name for part in (topology.hosts, topology.switches) for v in part if v.name not in topology.ranks
    ]
    names = (*kept, *others)
    place = {name: number for number, name in enumerate(names)}
    edges = [
        Edge(place[s], place[t], link.bandwidth_bytes_per_s, link.latency_s)
        for link in topology.links
        if (kinds is None or link.kind in kinds) and not {link.source, link.target} & left_out
        for s, t in link.directions
    ]
    made = Network(name=topology.name, ranks=len(kept), vertices=names, edges=tuple(edges))
    _check_joined(made)
    return made


def _check_joined(made: Network) -> None:
    for backwards in (False, True):
        onward: list[list[int]] = [[] for _ in made.vertices]
        for edge in made.edges:
            a, b = (edge.target, edge.source) if backwards else (edge.source, edge.target)
            onward[a].append(b)
        reached, open_ = {0}, [0]
        while open_:
            new = set(onward[open_.pop()]) - reached
            reached |= new
            open_ += new
        for rank in range(made.ranks):
            if rank not in reached:
                ends = (rank, 0) if backwards else (0, rank)
                raise TopologyError(
                    f"topology {made.name!r}: no path leads from {made.vertices[ends[0]]!r} to "
                    f"{made.vertices[ends[1]]!r}; a collective needs all ranks joined, add the missing link"
                )
