"""Message costs of every pair of ranks, measured or from a topology, and the interface bandwidths they imply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.collective import Network, network
from wirewise.cost.link import LinkCost
from wirewise.errors import InputError, TopologyError
from wirewise.topology import Topology

__all__ = [
    "Ints",
    "Matrix",
    "PairCosts",
    "Vector",
    "between_hosts",
    "fastest",
    "graph_of",
    "hosts_of_names",
    "hosts_of_ranks",
    "interfaces_of",
    "inverse",
    "pairs_of",
    "rates_of",
    "with_payload",
]

Ints = NDArray[np.int64]
Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PairCosts:
    """Seconds of a message of n bytes without contention: latency_s + s_per_byte * n."""

    latency_s: Matrix
    """Latency in seconds, [sender, receiver]; the diagonal is ignored."""
    s_per_byte: Matrix
    """Seconds per byte, [sender, receiver]; infinite if every path leads through other ranks."""

    def cost(self, sender: int, receiver: int) -> LinkCost:
        """Cost of one pair."""
        return LinkCost(
            latency_s=float(self.latency_s[sender, receiver]),
            s_per_byte=float(self.s_per_byte[sender, receiver]),
        )


def pairs_of(costs: Mapping[tuple[int, int], LinkCost] | LinkCost, world_size: int) -> PairCosts:
    """Build matrices from the cost of each (sender, receiver), or from one cost for all.

    Raises:
        InputError: A pair is missing.
    """
    latency, slope = np.zeros((world_size, world_size)), np.zeros((world_size, world_size))
    for s in range(world_size):
        for r in range(world_size):
            if s == r:
                continue
            if isinstance(costs, Mapping) and (s, r) not in costs:
                raise InputError(f"no link cost from rank {s} to rank {r}; measure all {world_size} ranks")
            cost = costs[s, r] if isinstance(costs, Mapping) else costs
            latency[s, r], slope[s, r] = cost.latency_s, cost.s_per_byte
    return PairCosts(latency, slope)


def inverse(values: Vector) -> Vector:
    """Elementwise 1 / values; infinite for 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values)


def fastest(s_per_byte: Matrix, host: Ints, hosts: int) -> tuple[Vector, Vector]:
    """Seconds per byte of the fastest pair that leaves and that enters each host, [hosts]; infinite if none."""
    slope = np.where(host[:, None] != host, s_per_byte, np.inf)
    out, into = np.full(hosts, np.inf), np.full(hosts, np.inf)
    np.minimum.at(out, host, slope.min(axis=1, initial=np.inf))
    np.minimum.at(into, host, slope.min(axis=0, initial=np.inf))
    return out, into


def rates_of(pairs: PairCosts, host: Ints, hosts: int) -> tuple[Vector, Vector]:
    """Bytes per second out of and into each host, [hosts], assuming that its fastest pair saturates the interface."""
    out, into = (inverse(side) for side in fastest(pairs.s_per_byte, host, hosts))
    return np.where(out > 0, out, np.inf), np.where(into > 0, into, np.inf)


def between_hosts(pairs: PairCosts, host: Ints, hosts: int) -> tuple[Matrix, Vector]:
    """Largest latency of a pair between two hosts, [hosts, hosts], and bandwidth per rank of each host, [hosts].

    Ranks of a host that all send at once, as in a ring, each get the bandwidth of the host's slowest pair.
    """
    latency, slowest = np.zeros((hosts, hosts)), np.zeros(hosts)
    for sender, here in enumerate(host.tolist()):
        others = np.arange(len(host)) != sender
        np.maximum.at(latency[here], host[others], pairs.latency_s[sender, others])
        slope = pairs.s_per_byte[sender, others & (host == here)]
        slowest[here] = slope[np.isfinite(slope)].max(initial=slowest[here])
    return latency, inverse(slowest / np.maximum(np.bincount(host, minlength=hosts), 1))


def with_payload(topology: Topology, share: float) -> Topology:
    """Topology with the bandwidth of its Ethernet links multiplied by a fraction.

    Raises:
        InputError: The fraction is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise InputError(f"payload is {share}; expected the share of a link's rate, above 0 and at most 1")
    links = tuple(
        msgspec.structs.replace(link, bandwidth_bytes_per_s=share * link.bandwidth_bytes_per_s)
        if link.kind == "ethernet"
        else link
        for link in topology.links
    )
    return msgspec.structs.replace(topology, links=links)


def interfaces_of(topology: Topology) -> tuple[Vector, Vector]:
    """Bytes per second out of and into each host, [hosts]: its links to other hosts and to switches between hosts.

    Raises:
        InputError: A host has no link to others.
    """
    number = {host.name: place for place, host in enumerate(topology.hosts)}
    of_host = _host_of_ends(topology)
    out, into = np.zeros(len(number)), np.zeros(len(number))
    for link in topology.links:
        ends = (of_host.get(link.source), of_host.get(link.target))
        if ends[0] == ends[1]:
            continue
        for source, target in (ends, ends[::-1])[: 2 if link.direction == "both" else 1]:
            if source is not None:
                out[number[source]] += link.bandwidth_bytes_per_s
            if target is not None:
                into[number[target]] += link.bandwidth_bytes_per_s
    if len(number) == 1:
        out, into = np.full(1, np.inf), np.full(1, np.inf)
    if not ((out > 0) & (into > 0)).all():
        lonely = topology.hosts[int(np.argmin(np.minimum(out, into)))].name
        raise InputError(
            f"host {lonely!r} of topology {topology.name!r} has no link out or in; expected links to other hosts or to "
            "a switch between hosts"
        )
    return out, into


def _host_of_ends(topology: Topology) -> dict[str, str]:
    """Host of each end of links; switches between hosts are left out."""
    of_host = {host.name: host.name for host in topology.hosts}
    of_host |= {device.name: device.host for device in topology.devices}
    return of_host | {one.name: one.host for one in topology.switches if one.host is not None}


def hosts_of_names(topology: Topology, names: Iterable[str]) -> Ints:
    """Host number of each named host, device or switch; -1 for a switch between hosts."""
    number = {host.name: place for place, host in enumerate(topology.hosts)}
    of_host = _host_of_ends(topology)
    return np.array([number[of_host[one]] if one in of_host else -1 for one in names], dtype=np.int64)


def hosts_of_ranks(topology: Topology) -> Ints:
    """Host number of each rank, [ranks]."""
    return hosts_of_names(topology, topology.ranks)


def graph_of(topology: Topology) -> Network | None:
    """Capacity graph of the topology. None if its ranks are not connected."""
    try:
        return network(topology)
    except TopologyError:
        return None
