"""Topologies from the XML files of NCCL and RCCL (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`).

A file nests what PCIe joins: NUMA nodes, bridges, GPUs and network cards, with the generation and width of each link;
NVLink and xGMI stand in a GPU, by the other end and a count. Missing attributes are assumed as in NCCL, and reported:
the rate of one NVLink or xGMI link (by the GPU model), the links between NUMA nodes, the network between hosts.
"""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from wirewise.errors import TopologyError
from wirewise.topology.model import Device, Host, Link, LinkKind, Switch, Topology, cable

__all__ = ["ImportedTopology", "from_nccl_xml"]

_MOST_HOSTS = 4096
_PCIE_S, _NVLINK_S, _SOCKET_S, _NETWORK_S = 1e-6, 2e-6, 1e-6, 2e-6
_ENCODING = ((5.0, 8 / 10), (32.0, 128 / 130), (1e9, 242 / 256))
"""Part of a lane's rate that is data, up to each transfer rate: 8b/10b, 128b/130b, flits."""
_NVLINK_BYTES_PER_S = {60: 20e9, 70: 25e9, 80: 25e9, 90: 25e9, 100: 50e9}
"""One NVLink each way, by compute capability; a GPU has that of the newest one that is not above its own."""
_XGMI_BYTES_PER_S = {"906": 24e9, "908": 24e9, "910": 36e9, "90": 36e9, "94": 48e9, "95": 48e9}
"""One xGMI link each way, by `gcn`, the beginning of its name."""
_SOCKET_BYTES_PER_S = {"AuthenticAMD": 16e9, "GenuineIntel": 22e9, "PPC64": 32e9, "ARM64": 6e9}
_OTHER_SOCKET_BYTES_PER_S = 12e9
_NVSWITCH_CLASS = "0x068000"
_SPEED = re.compile(r"\s*([\d.]+)\s*GT/s(\s*PCIe)?\s*")


class ImportedTopology(NamedTuple):
    """Topology, and properties that its file left open."""

    topology: Topology
    notes: tuple[str, ...]


@dataclass
class _Machine:
    """Devices and links of one host; names without the host's."""

    gpus: list[tuple[int, str, str]] = field(default_factory=list)
    """Rank, name and model of each GPU."""
    switches: list[tuple[str, str]] = field(default_factory=list)
    """Name and kind."""
    links: list[tuple[str, str, LinkKind, float, float]] = field(default_factory=list)
    """Ends, kind, rate and latency."""
    ports: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    """Ports of each card, their rate together and their latency."""
    notes: dict[str, None] = field(default_factory=dict)


def from_nccl_xml(text: str, *, name: str = "machine", hosts: int = 1) -> ImportedTopology:
    """Parse a machine, replicated for several hosts.

    Args:
        text: Text of the file.
        name: Name of the topology.
        hosts: Number of machines of this kind, which share one network, each with all of its ports.

    Raises:
        TopologyError: The file is of another kind, or a GPU, speed or link is unknown; the message names it.
    """
    if not 1 <= hosts <= _MOST_HOSTS:
        raise TopologyError(f"got {hosts} hosts; expected 1 to {_MOST_HOSTS}")
    machine = _read(_root(text))
    if hosts > 1 and not machine.ports:
        raise TopologyError(
            f"the file has no network card, and {hosts} hosts are to be joined; expected <net speed=...>"
        )
    rooms = [f"h{number}-" if hosts > 1 else "" for number in range(hosts)]
    place = [f"h{number}" for number in range(hosts)]
    made = Topology(
        name=name,
        description="Read from a topology file of NCCL or RCCL. Latencies are orders of magnitude.",
        hosts=tuple(Host(name=host) for host in place),
        devices=tuple(
            Device(name=f"{room}{gpu}", host=host, type=model)
            for room, host in zip(rooms, place, strict=True)
            for _, gpu, model in sorted(machine.gpus)
        ),
        switches=(
            *(
                Switch(name=f"{room}{switch}", kind=kind, host=host)  # type: ignore[arg-type]
                for room, host in zip(rooms, place, strict=True)
                for switch, kind in machine.switches
            ),
            *([Switch(name="network", kind="network")] if hosts > 1 else []),
        ),
        links=tuple(itertools.chain.from_iterable(_links(machine, room, hosts > 1) for room in rooms)),
    )
    notes = [*machine.notes]
    if hosts > 1:
        notes.append(
            "the network between hosts is not in the file: all ports meet in one switch that never limits them"
        )
    elif machine.ports:
        ports = sum(count for count, _, _ in machine.ports.values())
        notes.append(f"{ports} network ports are left out, as one host has no network; give --hosts")
    return ImportedTopology(made, tuple(notes))


def _links(machine: _Machine, room: str, joined: bool) -> Iterator[Link]:
    for source, target, kind, rate, latency_s in machine.links:
        yield cable(room + source, room + target, kind, rate, latency_s)
    for at, (_, rate, latency_s) in machine.ports.items() if joined else ():
        yield cable(room + at, "network", "infiniband", rate, latency_s)


def _root(text: str) -> ET.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise TopologyError("got a document type in a topology file; expected plain XML, as NCCL writes it")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise TopologyError(f"cannot read a topology file of NCCL: {error}; expected XML") from error
    if root.tag != "system":
        raise TopologyError(f"got <{root.tag}>; expected <system>, as NCCL_TOPO_DUMP_FILE writes it")
    return root


def _read(root: ET.Element) -> _Machine:
    machine, own = _Machine(), dict[str, str]()
    cpus = root.findall("cpu")
    if not cpus:
        raise TopologyError("the file has no <cpu>; expected NUMA nodes with what hangs on them")
    for number, cpu in enumerate(cpus):
        socket = f"numa{cpu.get('numaid', number)}"
        machine.switches.append((socket, "socket"))
        for pci in cpu.findall("pci"):
            _pci(machine, pci, socket, own)
        # Virtual cards stand beside PCIe.
        for net in cpu.findall("nic/net"):
            _port(machine, net, socket)
    if not machine.gpus:
        raise TopologyError("the file has no <gpu>; expected at least one")
    _join_sockets(machine, cpus)
    _join_gpus(machine, root, own)
    return machine


def _pci(machine: _Machine, pci: ET.Element, above: str, own: dict[str, str]) -> None:
    """A PCIe device or bridge with all below it."""
    bus = _attribute(pci, "busid")
    gpu, nic = pci.find("gpu"), pci.find("nic")
    if gpu is not None:
        rank = _whole(gpu, "rank" if gpu.get("rank") is not None else "dev")
        name = f"gpu{rank}"
        machine.gpus.append((rank, name, _model(gpu)))
        own[bus] = name
    else:
        name = f"{'nic' if nic is not None else 'pcie'}-{bus}"
        # Some files name a bridge like what hangs on it.
        alike = sum(switch.partition("/")[0] == name for switch, _ in machine.switches)
        name += f"/{alike}" if alike else ""
        machine.switches.append((name, "pcie"))
    machine.links.append((name, above, "pcie", _pcie_rate(machine, pci), _PCIE_S))
    for net in [] if nic is None else nic.findall("net"):
        _port(machine, net, name)
    for below in pci.findall("pci"):
        _pci(machine, below, name, own)


def _port(machine: _Machine, net: ET.Element, at: str) -> None:
    if net.get("speed") is None:
        machine.notes["a network port without speed counts as 10 Gbit/s"] = None
    if net.get("coll") not in (None, "0"):
        machine.notes["collective offload of a network card (coll) is not used"] = None
    count, rate, _ = machine.ports.get(at, (0, 0.0, 0.0))
    latency_s = _number(net, "latency", 0.0) * 1e-6 or _NETWORK_S
    machine.ports[at] = (count + 1, rate + _number(net, "speed", 10_000.0) * 1e6 / 8, latency_s)


def _pcie_rate(machine: _Machine, pci: ET.Element) -> float:
    speed, width = pci.get("link_speed", ""), _number(pci, "link_width", 16.0) or 16.0
    found = _SPEED.fullmatch(speed)
    if found is None and speed not in ("", "Unknown"):
        raise TopologyError(
            f"pci {pci.get('busid')}: got the link_speed {speed!r}; expected such as '16 GT/s'"
        )
    if found is None:
        machine.notes["PCIe links without link_speed count as 8 GT/s"] = None
    gigatransfers = float(found[1]) if found else 8.0
    data = next(part for most, part in _ENCODING if gigatransfers <= most)
    return gigatransfers * 1e9 * width * data / 8


def _join_sockets(machine: _Machine, cpus: list[ET.Element]) -> None:
    names = [name for name, kind in machine.switches if kind == "socket"]
    if len(names) < 2:
        return
    vendor = cpus[0].get("vendor") or (cpus[0].get("arch") or "").upper()
    rate = _SOCKET_BYTES_PER_S.get(vendor, _OTHER_SOCKET_BYTES_PER_S)
    machine.links += [(a, b, "socket", rate, _SOCKET_S) for a, b in itertools.combinations(names, 2)]
    machine.notes[
        f"what joins NUMA nodes is not in the file: {rate / 1e9:g} GB/s between any two, by the vendor"
    ] = None


def _join_gpus(machine: _Machine, root: ET.Element, own: dict[str, str]) -> None:
    """NVLink and xGMI; a link stands at both ends, and counts once."""
    direct: dict[tuple[str, str], tuple[LinkKind, float]] = {}
    to_switch: dict[str, float] = {}
    for pci in root.iter("pci"):
        gpu = pci.find("gpu")
        for link in [] if gpu is None else [*gpu.findall("nvlink"), *gpu.findall("xgmi")]:
            assert gpu is not None
            here, target = own[_attribute(pci, "busid")], link.get("target", "")
            kind: LinkKind = "nvlink" if link.tag == "nvlink" else "xgmi"
            rate = _whole(link, "count") * _link_rate(machine, gpu, kind)
            if link.get("tclass", "").lower().startswith(_NVSWITCH_CLASS[:6]):
                to_switch[here] = to_switch.get(here, 0.0) + rate
            elif target in own:
                direct[min(here, own[target]), max(here, own[target])] = (kind, rate)
            else:
                machine.notes[
                    f"{link.tag} to {target or 'no target'} is left out: no GPU of the file is there"
                ] = None
    machine.links += [(a, b, kind, rate, _NVLINK_S) for (a, b), (kind, rate) in direct.items()]
    if to_switch:
        machine.switches.append(("nvswitch", "nvswitch"))
        machine.links += [(gpu, "nvswitch", "nvlink", rate, _NVLINK_S / 2) for gpu, rate in to_switch.items()]


def _link_rate(machine: _Machine, gpu: ET.Element, kind: LinkKind) -> float:
    if kind == "nvlink":
        capability = int(_number(gpu, "sm", 70.0))
        rate = _NVLINK_BYTES_PER_S[max(s for s in _NVLINK_BYTES_PER_S if s <= max(capability, 60))]
    else:
        gcn = gpu.get("gcn", "")
        known = [part for part in _XGMI_BYTES_PER_S if gcn.removeprefix("gfx").startswith(part)]
        rate = _XGMI_BYTES_PER_S[max(known, key=len)] if known else 24e9
    machine.notes[
        f"the rate of one {kind} link is not in the file: {rate / 1e9:g} GB/s each way, by the GPU"
    ] = None
    return rate


def _model(gpu: ET.Element) -> str:
    return f"gfx{gpu.get('gcn', '').removeprefix('gfx')}" if gpu.get("gcn") else f"sm{gpu.get('sm', '')}"


def _attribute(element: ET.Element, name: str) -> str:
    found = element.get(name)
    if not found:
        raise TopologyError(f"<{element.tag}> has no {name}; expected it on each")
    return found


def _number(element: ET.Element, name: str, default: float) -> float:
    found = element.get(name)
    if found is None:
        return default
    try:
        value = float(found)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise TopologyError(f"<{element.tag}> has {name}={found!r}; expected a number of at least 0")
    return value


def _whole(element: ET.Element, name: str) -> int:
    _attribute(element, name)
    return int(_number(element, name, 0.0))
