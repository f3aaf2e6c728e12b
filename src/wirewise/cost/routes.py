"""What a topology says about the interfaces of its hosts and about the paths between its ranks."""

from __future__ import annotations

import msgspec
import numpy as np

from wirewise.collective import Network, network
from wirewise.cost.pairs import Ints, PairCosts, Vector, inverse
from wirewise.errors import InputError, TopologyError
from wirewise.topology import Topology

__all__ = ["graph_of", "hosts_of_ranks", "interfaces_of", "routes_of", "with_payload"]


def with_payload(topology: Topology, share: float) -> Topology:
    """The topology with this share of the rate of its Ethernet links.

    Raises:
        InputError: A share that is not above 0 and at most 1.
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
    """Bytes a second out of each host and into it, [hosts]: its links to other hosts and to switches between hosts.

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


def hosts_of_ranks(topology: Topology) -> Ints:
    """Host number of each rank, [ranks]."""
    number = {host.name: place for place, host in enumerate(topology.hosts)}
    of_host = _host_of_ends(topology)
    return np.array([number[of_host[rank]] for rank in topology.ranks], dtype=np.int64)


def graph_of(topology: Topology) -> Network | None:
    """The graph of the topology; None where no path joins all of its ranks."""
    try:
        return network(topology)
    except TopologyError:
        return None


def routes_of(graph: Network) -> PairCosts:
    """Latency and rate of the route between every two ranks.

    Where only other ranks can pass a message on, the pair has no rate, and the latency of all of the way.
    """
    ranks = graph.ranks
    latency, rate = np.zeros((ranks, ranks)), np.full((ranks, ranks), np.inf)
    for s in range(ranks):
        for r in range(ranks):
            if s != r:
                latency[s, r], rate[s, r] = graph.latency(s, r), graph.rate(s, r)
    if not np.isfinite(latency).all():
        for by in range(ranks):
            latency = np.minimum(latency, latency[:, by : by + 1] + latency[by])
    return PairCosts(latency, inverse(rate))
