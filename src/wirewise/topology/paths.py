"""Paths of traffic between the nodes of a topology."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import msgspec

from wirewise.errors import TopologyError
from wirewise.topology.model import Link, Topology

__all__ = ["Path", "link_between", "neighbours", "path_between"]


class Path(NamedTuple):
    """Links of a path, treated as one channel."""

    links: tuple[Link, ...]
    """Links in order, from source to target."""
    latency_s: float
    """Latency of the path, the sum over its links."""
    bandwidth_bytes_per_s: float
    """Bytes per second of the slowest link."""


def link_between(topology: Topology, source: str, target: str) -> Link | None:
    """Direct link with the highest bandwidth, seen from `source`. None if there is no direct one.

    Raises:
        TopologyError: A name is unknown.
    """
    _check_names(topology, source, target)
    direct = [link for link in _leaving(topology, source) if link.target == target]
    return max(direct, key=lambda link: link.bandwidth_bytes_per_s, default=None)


def neighbours(topology: Topology, name: str) -> tuple[str, ...]:
    """Unique neighbours of a node, in the order of the links.

    Raises:
        TopologyError: The name is unknown.
    """
    _check_names(topology, name)
    return tuple(dict.fromkeys(link.target for link in _leaving(topology, name)))


def path_between(topology: Topology, source: str, target: str) -> Path | None:
    """Widest path; ties go to the lowest latency, then to the fewest links.

    Hosts and switches forward traffic, devices do not. Links are assumed idle: contention is left to the caller.

    Returns:
        None if there is no path.

    Raises:
        TopologyError: A name is unknown, or both are the same.
    """
    _check_names(topology, source, target)
    if source == target:
        raise TopologyError(f"asked for a path from {source!r} to itself; expected two different ends")
    leaving: dict[str, list[Link]] = {}
    for link in _directed(topology):
        leaving.setdefault(link.source, []).append(link)
    width = _widest(topology, leaving, source, target)
    return None if width is None else _quickest(topology, leaving, source, target, width)


def _widest(topology: Topology, leaving: dict[str, list[Link]], source: str, target: str) -> float | None:
    devices = {device.name for device in topology.devices}
    queue, done = [(-float("inf"), source)], set[str]()
    while queue:
        negative, here = heapq.heappop(queue)
        if here == target:
            return -negative
        if here in done or (here in devices and here != source):
            continue
        done.add(here)
        for link in leaving.get(here, ()):
            heapq.heappush(queue, (max(negative, -link.bandwidth_bytes_per_s), link.target))
    return None


def _quickest(
    topology: Topology, leaving: dict[str, list[Link]], source: str, target: str, width: float
) -> Path:
    """The path of the lowest latency over links that are at least `width` wide; there is one."""
    devices = {device.name for device in topology.devices}
    # The counter keeps the order of links among equals and spares comparing them.
    queue: list[tuple[float, int, int, str, tuple[Link, ...]]] = [(0.0, 0, 0, source, ())]
    done, pushed = set[str](), 0
    while True:
        latency_s, hops, _, here, links = heapq.heappop(queue)
        if here == target:
            return Path(links, latency_s, width)
        if here in done or (here in devices and here != source):
            continue
        done.add(here)
        for link in leaving.get(here, ()):
            if link.bandwidth_bytes_per_s >= width:
                pushed += 1
                entry = (latency_s + link.latency_s, hops + 1, pushed, link.target, (*links, link))
                heapq.heappush(queue, entry)


def _directed(topology: Topology) -> list[Link]:
    return [
        msgspec.structs.replace(link, source=source, target=target)
        for link in topology.links
        for source, target in link.directions
    ]


def _leaving(topology: Topology, name: str) -> list[Link]:
    return [link for link in _directed(topology) if link.source == name]


def _check_names(topology: Topology, *names: str) -> None:
    known = {end.name for part in (topology.hosts, topology.devices, topology.switches) for end in part}
    for name in names:
        if name not in known:
            raise TopologyError(
                f"topology {topology.name!r} has no host, device or switch {name!r}; expected one of "
                f"{', '.join(sorted(known))}"
            )
