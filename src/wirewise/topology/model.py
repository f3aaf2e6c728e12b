"""What a topology is made of, and what must hold for it.

A topology is checked when it is made, so one that exists is consistent. Ends of links are names: of hosts, of
devices or of switches, which share one space of names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from wirewise.errors import TopologyError

__all__ = ["Device", "Direction", "Host", "Link", "LinkKind", "MisplacedError", "Switch", "Topology", "cable"]

DeviceKind = Literal["gpu", "cpu"]
SwitchKind = Literal["network", "nvswitch", "pcie", "socket"]
Direction = Literal["both", "one"]
LinkKind = Literal["ethernet", "infiniband", "nvlink", "pcie", "socket", "xgmi"]


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A machine; as the end of a link, its memory."""

    name: str
    message_s: float = 0.0
    """Processor seconds that a message costs a rank on it, to send as to receive (LogP's o); of devices, their own."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one rank computes on."""

    name: str
    host: str
    """Name of the host that it is part of."""
    kind: DeviceKind = "gpu"
    type: str = ""
    """Model of the device, such as "v100"; nothing: not known, or all are alike."""
    speed: float = 1.0
    """Factor by which it computes faster than the device that a job was measured on."""
    memory_bytes: float = 0.0
    """Room for tensors; 0: not known."""
    message_s: float = 0.0
    """Processor seconds that a message costs its rank, to send as to receive (LogP's o)."""


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What passes traffic on without computing: of a network, of a machine's NVLink or PCIe, a CPU socket."""

    name: str
    kind: SwitchKind
    host: str | None = None
    """Name of the host that it is part of; None: it stands between hosts."""


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A cable, or several that are used as one."""

    source: str = msgspec.field(name="from")
    """Name of one end; the key in files is `from`."""
    target: str = msgspec.field(name="to")
    """Name of the other end; the key in files is `to`."""
    latency_s: float
    """Time that a message without bytes takes; zero or more."""
    bandwidth_bytes_per_s: float
    """Rate of each direction on its own."""
    direction: Direction = "both"
    """"one": only from `source` to `target`."""
    kind: LinkKind = "ethernet"
    burst_bytes: float = 0.0
    """Bytes that pass at once after a pause, before the rate binds: the token bucket of a shaped link."""

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Ends in each direction of travel: from, to."""
        there = (self.source, self.target)
        return [there] if self.direction == "one" else [there, there[::-1]]


def cable(
    source: str, target: str, kind: LinkKind, rate: float, latency_s: float, direction: Direction = "both"
) -> Link:
    """A link by place, for tables of them; `rate` in bytes per second."""
    return Link(
        source=source,
        target=target,
        kind=kind,
        bandwidth_bytes_per_s=rate,
        latency_s=latency_s,
        direction=direction,
    )


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts with their devices, and how they are linked.

    Raises:
        TopologyError: A name is given twice or missing, an end dangles, a rate or time is impossible; the
            message names the path, such as `links[3].to`.
    """

    name: str
    hosts: tuple[Host, ...]
    description: str = ""
    """Where the figures come from."""
    devices: tuple[Device, ...] = ()
    """One a rank; without any, each host is one rank."""
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    processors: int = 0
    """Processors that all ranks share where their hosts are parts of one machine, as in a lab; 0: they share none."""

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise MisplacedError(fault.path, fault.reason)

    @property
    def ranks(self) -> tuple[str, ...]:
        """Names of what the ranks run on, in their order: devices, or hosts where no device is listed."""
        return tuple(end.name for end in self.devices or self.hosts)


class MisplacedError(TopologyError):
    """A fault at a path inside a topology."""

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
