"""Topology model, and its invariants.

A topology is validated on construction, so every instance is consistent. Ends of links are names of hosts, devices or
switches, which share one namespace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from wirewise.errors import TopologyError
from wirewise.notebooks import table_html
from wirewise.units import format_rate

__all__ = ["Device", "Direction", "Host", "Link", "LinkKind", "MisplacedError", "Switch", "Topology", "cable"]

DeviceKind = Literal["gpu", "cpu"]
SwitchKind = Literal["network", "nvswitch", "pcie", "socket"]
Direction = Literal["both", "one"]
LinkKind = Literal["ethernet", "infiniband", "nvlink", "pcie", "socket", "xgmi"]


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Machine; as the end of a link, its memory."""

    name: str
    message_s: float = 0.0
    """CPU time of a rank on it to send or to receive a message, in seconds (LogP's o); devices may override it."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Device that one rank computes on."""

    name: str
    host: str
    """Name of the host that it is part of."""
    kind: DeviceKind = "gpu"
    type: str = ""
    """Model of the device, such as "v100"; empty if unknown, or if all are equal."""
    speed: float = 1.0
    """Compute speed relative to the device that a job was measured on."""
    memory_bytes: float = 0.0
    """Memory for tensors, in bytes; 0 if unknown."""
    message_s: float = 0.0
    """CPU time of its rank to send or to receive a message, in seconds (LogP's o)."""


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Node that forwards traffic without computing: a network, NVLink or PCIe switch, or a CPU socket."""

    name: str
    kind: SwitchKind
    host: str | None = None
    """Name of the host that it is part of. None if it connects hosts."""


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cable, or several used as one."""

    source: str = msgspec.field(name="from")
    """Name of one end; the key in files is `from`."""
    target: str = msgspec.field(name="to")
    """Name of the other end; the key in files is `to`."""
    latency_s: float
    """Time of an empty message, in seconds; zero or more."""
    bandwidth_bytes_per_s: float
    """Bandwidth of each direction."""
    direction: Direction = "both"
    """Direction of the link; "one" for only from `source` to `target`."""
    kind: LinkKind = "ethernet"
    burst_bytes: float = 0.0
    """Bytes of a burst after idle time, before the bandwidth limits: the token bucket of a shaped link."""

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Ends in each direction: from, to."""
        there = (self.source, self.target)
        return [there] if self.direction == "one" else [there, there[::-1]]


def cable(
    source: str, target: str, kind: LinkKind, rate: float, latency_s: float, direction: Direction = "both"
) -> Link:
    """Make a link from positional arguments, for tables of links; `rate` in bytes per second."""
    return Link(
        source=source,
        target=target,
        kind=kind,
        bandwidth_bytes_per_s=rate,
        latency_s=latency_s,
        direction=direction,
    )


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts with their devices, and the links between them.

    Raises:
        TopologyError: A name is duplicate or missing, an end dangles, or a rate or time is invalid; the message names
            the path, such as `links[3].to`.
    """

    name: str
    hosts: tuple[Host, ...]
    description: str = ""
    """Source of the figures."""
    devices: tuple[Device, ...] = ()
    """Devices, one per rank; empty for one rank per host."""
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    processors: int = 0
    """Number of CPUs shared by all ranks if their hosts are parts of one machine, as in a lab; 0 if not shared."""

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise MisplacedError(fault.path, fault.reason)

    @property
    def ranks(self) -> tuple[str, ...]:
        """Names of the ranks' devices, in order, or of hosts if no device is listed."""
        return tuple(end.name for end in self.devices or self.hosts)

    def link_table(self) -> tuple[list[str], list[list[str]]]:
        """Column titles and rows of the links, for display."""
        arrow = {"both": "<->", "one": "->"}
        rows = [
            [
                f"{link.source} {arrow[link.direction]} {link.target}",
                link.kind,
                format_rate(link.bandwidth_bytes_per_s),
                f"{link.latency_s * 1e6:g} us",
            ]
            for link in self.links
        ]
        return ["link", "kind", "each direction", "latency"], rows

    def _repr_html_(self) -> str:
        size = f"{self.name}: {len(self.ranks)} ranks on {len(self.hosts)} hosts. {self.description}"
        return table_html(size.strip(), *self.link_table())


class MisplacedError(TopologyError):
    """Fault at a path inside a topology."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class _Fault(NamedTuple):
    path: str
    reason: str


def _faults(topology: Topology) -> Iterator[_Fault]:
    if not _is_name(topology.name):
        yield _Fault("name", f"got {topology.name!r}; {_NAME_RULE}")
    if topology.processors < 0:
        yield _Fault("processors", f"got {topology.processors}; expected a number of at least 0")
    if not topology.hosts:
        yield _Fault("hosts", "got no host; expected at least one")
    seen: dict[str, str] = {}
    for part in ("hosts", "devices", "switches"):
        yield from _name_faults(part, getattr(topology, part), seen)
    hosts = {host.name for host in topology.hosts}
    for part in ("hosts", "devices"):
        for number, end in enumerate(getattr(topology, part)):
            if not (math.isfinite(end.message_s) and end.message_s >= 0):
                yield _Fault(
                    f"{part}[{number}].message_s", f"got {end.message_s}; expected seconds, at least 0"
                )
    for number, device in enumerate(topology.devices):
        if device.host not in hosts:
            yield _Fault(f"devices[{number}].host", _no_such("host", device.host, hosts))
        if not (math.isfinite(device.speed) and device.speed > 0):
            yield _Fault(f"devices[{number}].speed", f"got {device.speed}; expected a finite factor above 0")
        if not (math.isfinite(device.memory_bytes) and device.memory_bytes >= 0):
            yield _Fault(
                f"devices[{number}].memory_bytes", f"got {device.memory_bytes}; expected bytes, at least 0"
            )
    for number, switch in enumerate(topology.switches):
        if switch.host is not None and switch.host not in hosts:
            yield _Fault(f"switches[{number}].host", _no_such("host", switch.host, hosts))
    yield from _link_faults(topology.links, set(seen))


_NAME_RULE = "expected printable text without spaces at its ends"


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable() and text == text.strip()


def _name_faults(
    part: str, members: tuple[Host | Device | Switch, ...], seen: dict[str, str]
) -> Iterator[_Fault]:
    for number, member in enumerate(members):
        path = f"{part}[{number}].name"
        if not _is_name(member.name):
            yield _Fault(path, f"got {member.name!r}; {_NAME_RULE}")
        if member.name in seen:
            yield _Fault(path, f"{member.name!r} is the name of {seen[member.name]} too; give each its own")
        seen[member.name] = f"{part}[{number}]"


def _link_faults(links: tuple[Link, ...], ends: set[str]) -> Iterator[_Fault]:
    seen: dict[tuple[str, str, str], int] = {}
    for number, link in enumerate(links):
        path = f"links[{number}]"
        for key, end in (("from", link.source), ("to", link.target)):
            if end not in ends:
                yield _Fault(f"{path}.{key}", _no_such("host, device or switch", end, ends))
        if link.source == link.target:
            yield _Fault(f"{path}.to", f"{link.target!r} is linked to itself; expected another end")
        if not (math.isfinite(link.latency_s) and link.latency_s >= 0):
            yield _Fault(f"{path}.latency_s", f"got {link.latency_s}; expected seconds, at least 0")
        if not (math.isfinite(link.bandwidth_bytes_per_s) and link.bandwidth_bytes_per_s > 0):
            got = link.bandwidth_bytes_per_s
            yield _Fault(f"{path}.bandwidth_bytes_per_s", f"got {got}; expected bytes per second, above 0")
        if not (math.isfinite(link.burst_bytes) and link.burst_bytes >= 0):
            yield _Fault(f"{path}.burst_bytes", f"got {link.burst_bytes}; expected bytes, at least 0")
        for source, target in link.directions:
            other = seen.setdefault((source, target, link.kind), number)
            if other != number:
                yield _Fault(
                    path,
                    f"links[{other}] goes from {source!r} to {target!r} by {link.kind} too; make them one "
                    "link with the sum of their bandwidths",
                )


def _no_such(what: str, name: str, known: set[str]) -> str:
    listed = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
    return f"there is no {what} {name!r}; expected one of {listed or '(none is listed)'}"
