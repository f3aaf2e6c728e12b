"""Lower bound on the time of a collective on a network, with the cut that proves it.

Bytes that must leave a group of vertices cross its outgoing edges, so bytes over bandwidth bounds the time of every
algorithm from below. The tightest cut is found exactly, in integers, by maximum flows (all-gather: as in ForestColl,
Zhao et al. 2024; broadcast: Edmonds 1973). Latencies are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.exchange_cuts import exchange_cut
from wirewise.collective.maxflow import Capacities, FlowGraph, capacities
from wirewise.collective.network import Network
from wirewise.collective.partitions import tightest_partition
from wirewise.collective.program import Program
from wirewise.collective.relations import COLLECTIVES, ROOTED, Collective
from wirewise.errors import InputError, TopologyError

__all__ = [
    "Bound",
    "BoundPair",
    "Cut",
    "all_gather_inverse_rate",
    "bound",
    "bound_pair",
    "busiest_edge_s",
    "tightest_cut",
    "two_phase_s",
]


_ALIKE = 1e-9
"""Relative difference below which two bounds are one: rates are rounded by less."""


class Bound(NamedTuple):
    """Lower bound on the time, `bytes_leaving / bandwidth_bytes_per_s`, less the initial bursts of edges."""

    seconds: float
    cut: tuple[int, ...]
    """Ranks inside the tightest cut; empty if the links into several parts together give a tighter bound."""
    bandwidth_bytes_per_s: float
    """Bytes per second of the edges that leave the cut; without a cut, of those into the parts or out of them."""
    bytes_leaving: float
    """Bytes that must pass them."""
    vertices: tuple[int, ...] = ()
    """All vertices inside: the ranks, and the hosts and switches on their side."""
    parts: tuple[tuple[int, ...], ...] = ()
    """Partition of the ranks if there is no cut; empty if each rank is a part, including non-participants."""
    exact: bool = True
    """Whether no tighter cut exists; False if not all could be tried (all-to-all on large networks)."""


class BoundPair(NamedTuple):
    """Lower bounds over all paths of a network, and over the routes that programs use."""

    network: Bound
    """Bound for all algorithms, over all paths."""
    routes: Bound | None
    """Tighter bound for programs, which send over `Network.routed_network` only. None if routes are no restriction."""

    @property
    def programs(self) -> Bound:
        """Lower bound that a search for programs can hope to reach."""
        return self.network if self.routes is None else self.routes


class Cut(NamedTuple):
    """Vertices with the most supply per unit of outgoing capacity."""

    supply: int
    capacity: int
    inside: NDArray[np.bool_]

    @property
    def ratio(self) -> Fraction:
        """Supply per unit of capacity."""
        return Fraction(self.supply, self.capacity)


def bound(
    network: Network,
    collective: Collective,
    size_bytes: float,
    *,
    root: int = 0,
    members: Sequence[int] = (),
) -> Bound:
    """Lower bound on the time of a collective of `size_bytes` (the larger of a rank's input and output buffers).

    Args:
        network: Network with all its paths; see `bound_pair` for those that programs use.
        collective: Name of the collective.
        size_bytes: Larger buffer of a rank, in bytes.
        root: Rank of a rooted collective.
        members: Participating ranks; the others only relay. Defaults to all.

    Raises:
        InputError: An unknown collective, a rank out of range or a size below 0.
        TopologyError: A group of vertices with data that others need has no outgoing edge.
    """
    group = tuple(members) or tuple(range(network.ranks))
    _check(network, collective, size_bytes, root, group)
    if len(group) == 1 or size_bytes == 0:
        return Bound(0.0, (), float("inf"), 0.0)
    found = _bound(network, collective, size_bytes, root, group)
    if not any(edge.burst_bytes for edge in network.edges):
        return found
    # What fits into the buckets of the edges passes at once; without a cut those of all edges count.
    inside = set(found.vertices)
    crossing = (e for e in network.edges if not inside or (e.source in inside and e.target not in inside))
    late = found.bytes_leaving - sum(edge.burst_bytes for edge in crossing)
    return found._replace(seconds=max(late, 0.0) / found.bandwidth_bytes_per_s)


def _bound(
    network: Network, collective: Collective, size_bytes: float, root: int, group: tuple[int, ...]
) -> Bound:
    found = capacities(network)
    if collective == "all_to_all":
        return _all_to_all(network, found, size_bytes / len(group), group)
    if collective == "all_reduce":
        return _all_reduce(network, found, size_bytes, group)
    backwards = collective in ("reduce_scatter", "reduce", "scatter")
    whole = collective in ("broadcast", "reduce")
    supply, sinks = _flows(network, collective, root, group)
    cut = tightest_cut(found.reverse if backwards else found, supply, sinks)
    return _of_cut(network, found, cut, size_bytes if whole else size_bytes / len(group), backwards)


def bound_pair(
    network: Network,
    collective: Collective,
    size_bytes: float,
    *,
    root: int = 0,
    members: Sequence[int] = (),
) -> BoundPair:
    """Bounds over all paths of a network and over its routes, which differ where programs cannot use some paths.

    GPUs behind one NVSwitch, for example, never send to each other through their network cards. Arguments and errors
    as in `bound`.
    """
    whole = bound(network, collective, size_bytes, root=root, members=members)
    if network.routed_network is network:
        return BoundPair(whole, None)
    routed = bound(network.routed_network, collective, size_bytes, root=root, members=members)
    return BoundPair(whole, routed if routed.seconds > whole.seconds * (1 + _ALIKE) else None)


def all_gather_inverse_rate(network: Network, members: Sequence[int] = ()) -> Fraction:
    """Seconds per byte of one rank's block in an all-gather: the largest |ranks inside| / bandwidth over all cuts."""
    group = tuple(members) or tuple(range(network.ranks))
    found = capacities(network)
    supply, sinks = _flows(network, "all_gather", 0, group)
    return tightest_cut(found, supply, sinks).ratio / found.unit_bytes_per_s


def two_phase_s(network: Network, size_bytes: float, members: Sequence[int] = ()) -> float:
    """Lower bound on an all-reduce made of a reduce-scatter followed by an all-gather, in seconds."""
    return (
        bound(network, "reduce_scatter", size_bytes, members=members).seconds
        + bound(network, "all_gather", size_bytes, members=members).seconds
    )


def tightest_cut(capacities: Capacities, supply: NDArray[np.int64], sinks: Sequence[int]) -> Cut:
    """Find the vertex set that excludes some sink and has the most supply per unit of outgoing capacity.

    Newton's method on the ratio (Dinkelbach 1967): while the flow problem scaled by the current ratio has a cut that
    is too small, that cut has a larger ratio. Each sink takes a few maximum flows; all is exact.

    Args:
        capacities: Capacities of the edges.
        supply: Units that each vertex sends to every sink; [vertices].
        sinks: Vertices that need the supply of all others.

    Raises:
        TopologyError: A group with supply has no outgoing edge.
    """
    senders = np.flatnonzero(supply)
    hub = capacities.vertices
    graph = FlowGraph(
        hub + 1,
        np.concatenate([np.full(len(senders), hub), capacities.sources]),
        np.concatenate([senders, capacities.targets]),
    )
    best = _cut(capacities, supply, np.arange(hub) != sinks[0])
    _check_leaves(best)
    for sink in sinks:
        improved = True
        while improved:
            amounts = np.concatenate([supply[senders] * best.capacity, capacities.amounts * best.supply])
            new = _cut(capacities, supply, graph.cut(amounts, hub, sink)[1][:hub])
            _check_leaves(new)
            improved = new.supply * best.capacity > best.supply * new.capacity
            best = new if improved else best
    return best


def busiest_edge_s(program: Program, network: Network, size_bytes: float) -> float:
    """Transfer time of the most loaded edge, if all transfers take the network's routes, in seconds.

    This bounds every execution of the program from below; a long pipeline approaches it as far as latencies allow.

    Raises:
        TopologyError: A transfer is between ranks without a route.
    """
    load, each = [0.0] * len(network.edges), program.chunk_bytes(size_bytes)
    for transfer in program.transfers:
        path = network.route(transfer.source, transfer.target)
        if path is None:
            raise TopologyError(
                f"no route leads from rank {transfer.source} to rank {transfer.target}; expected neighbours"
            )
        for edge, fraction in path:
            load[edge] += fraction * each[transfer.chunk]
    pairs = zip(load, network.edges, strict=True)
    return max((amount / edge.bandwidth_bytes_per_s for amount, edge in pairs), default=0.0)


def _cut(capacities: Capacities, supply: NDArray[np.int64], inside: NDArray[np.bool_]) -> Cut:
    return Cut(int(supply[inside].sum()), capacities.leaving(inside), inside)


def _check_leaves(cut: Cut) -> None:
    if cut.supply and not cut.capacity:
        raise TopologyError(
            f"no edge leads out of the vertices {np.flatnonzero(cut.inside).tolist()}, whose data others need; "
            "add the missing link"
        )


def _flows(
    network: Network, collective: Collective, root: int, group: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """Supplies and the ranks that need all of them; for collectives that run backwards, on the reversed edges."""
    supply = np.zeros(len(network.vertices), np.int64)
    supply[[root] if collective in ("broadcast", "reduce") else list(group)] = 1
    if collective in ("gather", "scatter"):
        supply[root] = 0
        return supply, [root]
    return supply, [rank for rank in group if collective not in ROOTED or rank != root]


def _of_cut(network: Network, capacities: Capacities, cut: Cut, unit_bytes: float, backwards: bool) -> Bound:
    # On reversed edges what leaves a group is what enters it: it leaves the others.
    inside = ~cut.inside if backwards else cut.inside
    bandwidth = float(cut.capacity * capacities.unit_bytes_per_s)
    leaving = cut.supply * unit_bytes
    vertices = tuple(np.flatnonzero(inside).tolist())
    ranks = tuple(v for v in vertices if v < network.ranks)
    return Bound(leaving / bandwidth, ranks, bandwidth, leaving, vertices)


def _all_reduce(network: Network, capacities: Capacities, size_bytes: float, group: Sequence[int]) -> Bound:
    """Each group of ranks must send its sum and get the others'; and k parts must take in 2 (k - 1) sums."""
    supply, sinks = _flows(network, "broadcast", group[0], group)
    bounds = [
        _of_cut(network, capacities, tightest_cut(capacities, supply, sinks), size_bytes, False),
        _of_cut(network, capacities, tightest_cut(capacities.reverse, supply, sinks), size_bytes, True),
    ]
    if len(group) == network.ranks:
        bounds += [_of_parts(way, network.ranks, size_bytes) for way in (capacities, capacities.reverse)]
    else:
        # Ranks that take no part may add, so that what they take in counts too.
        into = sum(e.bandwidth_bytes_per_s for e in network.edges if e.target < network.ranks)
        arriving = 2 * (len(group) - 1) * size_bytes
        bounds.append(Bound(arriving / into, (), into, arriving))
    return max(bounds, key=lambda b: b.seconds)


def _of_parts(capacities: Capacities, ranks: int, size_bytes: float) -> Bound:
    parts, capacity = tightest_partition(capacities, ranks)
    bandwidth = float(capacity * capacities.unit_bytes_per_s)
    passing = 2 * (len(parts) - 1) * size_bytes
    return Bound(passing / bandwidth, (), bandwidth, passing, parts=parts)


def _all_to_all(network: Network, capacities: Capacities, pair_bytes: float, group: Sequence[int]) -> Bound:
    supply = np.zeros(len(network.vertices), np.int64)
    supply[list(group)] = 1
    inside, exact = exchange_cut(capacities, supply)
    pairs = int(supply[inside].sum()) * int(supply[~inside].sum())
    capacity = capacities.leaving(inside)
    made = _of_cut(network, capacities, Cut(pairs, capacity, inside), pair_bytes, False)
    return made._replace(exact=exact)


def _check(
    network: Network, collective: Collective, size_bytes: float, root: int, group: Sequence[int]
) -> None:
    if collective not in COLLECTIVES:
        raise InputError(f"got the collective {collective!r}; expected one of {', '.join(COLLECTIVES)}")
    if not 0 <= size_bytes < float("inf"):
        raise InputError(f"got a size of {size_bytes} bytes; expected a number of at least 0")
    if len(set(group)) < len(group) or not all(0 <= m < network.ranks for m in group):
        raise InputError(f"got the members {tuple(group)}; expected different ranks below {network.ranks}")
    if collective in ROOTED and root not in group:
        raise InputError(f"got the root {root}; expected a member, one of {tuple(group)}")
