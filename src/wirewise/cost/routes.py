"""Latency and bandwidth of the route between every two ranks, computed for one host of each symmetry class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from wirewise.collective import Network
from wirewise.cost.pairs import PairCosts, Vector, inverse

__all__ = ["hosts_alike", "routes_of"]


def hosts_alike(graph: Network, host_of_vertex: Sequence[int]) -> list[tuple[int, ...]]:
    """Classes of interchangeable hosts: swapping any two, vertex by vertex, leaves the graph unchanged.

    They are equal inside, and have equal links to the same vertices outside.

    Args:
        graph: Graph of the ranks.
        host_of_vertex: Host of each vertex; -1 outside of hosts.
    """
    place, sizes = [0] * len(host_of_vertex), defaultdict[int, int](int)
    within = defaultdict[int, list[tuple[float, ...]]](list)
    for vertex, host in enumerate(host_of_vertex):
        place[vertex], sizes[host] = sizes[host], sizes[host] + 1
        within[host].append((0, vertex < graph.ranks))
    for edge in graph.edges:
        ends = [host_of_vertex[end] for end in (edge.source, edge.target)]
        for host in {*ends} - {-1}:
            # An end in the host counts by its place there, one outside by its own number.
            told = [
                place[end] if own == host else -1 - end
                for end, own in zip((edge.source, edge.target), ends, strict=True)
            ]
            within[host].append((1, *told, edge.bandwidth_bytes_per_s, edge.latency_s))
    found = defaultdict[tuple[tuple[float, ...], ...], list[int]](list)
    for host in sorted({*host_of_vertex} - {-1}):
        found[tuple(sorted(within[host]))].append(host)
    return list(map(tuple, found.values()))


def routes_of(graph: Network, host_of_vertex: Sequence[int]) -> PairCosts:
    """Latency and bandwidth of `Network.route` between every two ranks.

    If only other ranks could forward a message, the pair has no bandwidth, and the latency of the whole path.

    Args:
        graph: Graph of the ranks.
        host_of_vertex: Host of each vertex, ranks among them; -1 outside of hosts.
    """
    ranks = graph.ranks
    host = np.array(host_of_vertex, dtype=np.int64)[:ranks]
    latency, rate = np.zeros((ranks, ranks)), np.full((ranks, ranks), np.inf)
    for alike in hosts_alike(graph, host_of_vertex):
        first = np.flatnonzero(host == alike[0])
        for row, source in enumerate(first.tolist()):
            own = _from(graph, source)
            for other in alike:
                there = np.flatnonzero(host == other)
                order = np.arange(ranks)
                order[first], order[there] = there, first
                latency[there[row]], rate[there[row]] = own[0][order], own[1][order]
    if not np.isfinite(latency).all():
        for by in range(ranks):
            latency = np.minimum(latency, latency[:, by : by + 1] + latency[by])
    return PairCosts(latency, inverse(rate))


def _from(graph: Network, source: int) -> tuple[Vector, Vector]:
    """Latency and rate from a rank to each, 0 and infinite to itself."""
    late, rate = np.full(graph.ranks, np.inf), np.zeros(graph.ranks)
    late[source], rate[source] = 0.0, np.inf
    pairs = graph.table_from(source)
    late[pairs.pair % graph.ranks] = pairs.latency_s
    rate[pairs.pair % graph.ranks] = pairs.rate_bytes_per_s
    return late, rate
