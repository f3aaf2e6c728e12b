"""Clusters of equal machines behind a fabric: rails, a fat tree or a dragonfly in place of one network switch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from wirewise.errors import TopologyError
from wirewise.topology.model import Device, Host, Link, Switch, Topology, cable

__all__ = ["FABRICS", "cluster", "replace_fabric"]

_HOP_LATENCY_S = 5e-7
"""Latency of a cable between switches, an order of magnitude."""
_HOSTS_PER_LEAF = 4
End = TypeVar("End", Device, Switch)
_FABRIC = re.compile(r"(switch|rails|fat-tree|dragonfly)(?:-([1-9]\d?))?(?:/(\d+(?:\.\d+)?))?")


class _Port(NamedTuple):
    """A link of a host to the network."""

    link: Link
    host: int
    number: int
    """Place among the ports of its host."""


def cluster(host: Topology, count: int, fabric: str = "switch", *, name: str | None = None) -> Topology:
    """Build `count` machines like `host`, with the ports of its network switch connected to a fabric.

    Args:
        host: Topology of one machine, with a network switch for its ports.
        count: Number of machines.
        fabric: Name of the fabric, as in `replace_fabric`.
        name: Name of the topology. Defaults to "HOSTxCOUNT@FABRIC".

    Raises:
        TopologyError: There is no machine, `host` is not one machine with one network switch, or the fabric is unknown.
    """
    outside = [switch for switch in host.switches if switch.host is None]
    if count < 1 or len(host.hosts) != 1 or len(outside) != 1:
        raise TopologyError(
            f"a cluster of {count} times {host.name!r} with {len(host.hosts)} hosts and {len(outside)} switches "
            "outside of them; expected at least one machine, of one host whose ports end at one network switch"
        )
    (network,) = outside
    inside = [
        end.name for part in (host.hosts, host.devices, host.switches) for end in part if end is not network
    ]
    hosts, devices, switches, links = [], [], [network], []
    for number in range(count):
        own = {end: f"{end}-{number}" for end in inside} | {network.name: network.name}
        hosts.append(Host(name=own[host.hosts[0].name]))
        devices += [_moved(device, own) for device in host.devices]
        switches += [_moved(switch, own) for switch in host.switches if switch is not network]
        links += [
            msgspec.structs.replace(link, source=own[link.source], target=own[link.target])
            for link in host.links
        ]
    joined = Topology(
        name=f"{host.name}x{count}",
        description=host.description,
        hosts=tuple(hosts),
        devices=tuple(devices),
        switches=tuple(switches),
        links=tuple(links),
    )
    found = replace_fabric(joined, fabric)
    return found if name is None else msgspec.structs.replace(found, name=name)


def _moved(end: End, own: dict[str, str]) -> End:
    assert end.host is not None
    return msgspec.structs.replace(end, name=own[end.name], host=own[end.host])


def replace_fabric(topology: Topology, fabric: str) -> Topology:
    """Replace a topology's single network switch by a fabric.

    Args:
        topology: Topology of hosts whose ports end at one network switch.
        fabric: "switch" (non-blocking), "rails" (a switch for the first ports of all hosts, one for the second, and
            so on, joined by a spine), "fat-tree" (a switch for every four hosts, joined by a spine) or "dragonfly" (a
            switch for every four hosts, fully connected). "rails/2" has an oversubscription of 2 between switches;
            any factor from 1 on. "rails-2" and "fat-tree-4/2" have two and four spines, each with an equal part of
            that bandwidth, instead of one that stands for all.

    Raises:
        TopologyError: The fabric is unknown, or the topology has no such network switch.
    """
    match = _FABRIC.fullmatch(fabric)
    over = float(match[3] or 1) if match else 0.0
    if match is None or over < 1 or (match[1] == "switch" and match[0] != "switch") or _spineless(match):
        raise TopologyError(
            f"unknown fabric {fabric!r}; expected switch, or {', '.join(FABRICS)}, with the factor by which hosts "
            "could send more than goes between switches, from 1 on, such as fat-tree/2, and of rails and fat-tree the "
            "number of spines, such as fat-tree-4/2"
        )
    outside = [switch for switch in topology.switches if switch.host is None]
    if len(outside) != 1 or outside[0].kind != "network":
        raise TopologyError(
            f"topology {topology.name!r} has {len(outside)} switches outside of its hosts; expected one, of the network"
        )
    if match[1] == "switch":
        return topology
    network = outside[0].name
    ports = _ports(topology, network)
    leaf_of, joined = FABRICS[match[1]]
    leaves: dict[int, float] = defaultdict(float)
    links = [link for link in topology.links if network not in (link.source, link.target)]
    for port in ports:
        leaf = leaf_of(port)
        # Machines may send by one port and receive by another: each direction counts.
        leaves[leaf] += port.link.bandwidth_bytes_per_s * (0.5 if port.link.direction == "one" else 1.0)
        source, target = (
            f"leaf{leaf}" if end == network else end for end in (port.link.source, port.link.target)
        )
        links.append(msgspec.structs.replace(port.link, source=source, target=target))
    between, spines = joined(leaves, over, int(match[2] or 1))
    return msgspec.structs.replace(
        topology,
        name=f"{topology.name}@{fabric}",
        switches=(
            *(switch for switch in topology.switches if switch.host is not None),
            *(Switch(name=f"leaf{leaf}", kind="network") for leaf in sorted(leaves)),
            *spines,
        ),
        links=(*links, *between),
    )


def _spineless(match: re.Match[str]) -> bool:
    """Whether it has a number of spines and no spine."""
    return match[1] == "dragonfly" and match[2] is not None


def _ports(topology: Topology, network: str) -> list[_Port]:
    places = {host.name: number for number, host in enumerate(topology.hosts)}
    owner = {
        end.name: places[end.host]
        for part in (topology.devices, topology.switches)
        for end in part
        if end.host
    }
    owner |= places
    found, seen = [], dict.fromkeys(places.values(), 0)
    for link in topology.links:
        if network in (link.source, link.target):
            host = owner[link.source if link.target == network else link.target]
            found.append(_Port(link, host, seen[host]))
            seen[host] += 1
    return found


_Joined = tuple[list[Link], list[Switch]]


def _by_spine(leaves: dict[int, float], over: float, spines: int) -> _Joined:
    if len(leaves) < 2:
        return [], []
    names = ["spine"] if spines == 1 else [f"spine{number}" for number in range(spines)]
    links = [
        cable(f"leaf{leaf}", spine, "infiniband", rate / over / spines, _HOP_LATENCY_S)
        for leaf, rate in leaves.items()
        for spine in names
    ]
    return links, [Switch(name=spine, kind="network") for spine in names]


def _by_pairs(leaves: dict[int, float], over: float, _: int) -> _Joined:
    """Cables between all pairs of switches, with equal parts of what the hosts of the smaller of both could send."""
    numbers = sorted(leaves)
    share = over * max(1, len(numbers) - 1)
    links = [
        cable(f"leaf{a}", f"leaf{b}", "infiniband", min(leaves[a], leaves[b]) / share, _HOP_LATENCY_S)
        for place, a in enumerate(numbers)
        for b in numbers[place + 1 :]
    ]
    return links, []


FABRICS: dict[str, tuple[Callable[[_Port], int], Callable[[dict[int, float], float, int], _Joined]]] = {
    "rails": (lambda port: port.number, _by_spine),
    "fat-tree": (lambda port: port.host // _HOSTS_PER_LEAF, _by_spine),
    "dragonfly": (lambda port: port.host // _HOSTS_PER_LEAF, _by_pairs),
}
"""Switch of a port, and connection of the switches, by the name of the fabric."""
