"""Topologies from the output of `nvidia-smi topo -m`.

The table shows how each pair of devices is connected: NV# by # NVLinks, otherwise over PCIe, the nearest first: PIX
(one bridge), PXB (several bridges), PHB (the host bridge), NODE (one NUMA node), SYS (between sockets). It has no
bandwidths, which are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from wirewise import units
from wirewise.errors import TopologyError
from wirewise.topology.model import Device, Host, Link, Switch, Topology, cable

__all__ = ["SmiTable", "from_smi", "parse_smi"]

_MOST_LINKS = 18
"""NVLinks of a GPU of the newest generation that the table describes by counts."""
_NVLINK_LATENCY_S = 2e-6
_PCIE_LATENCY_S = 1e-6
_NETWORK_LATENCY_S = 2e-6
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"(GPU|NIC|mlx\d+_|bnxt_re|ib|hfi\d+_)\d+")
_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")


class SmiTable(NamedTuple):
    """Devices, and the connection of each pair."""

    devices: tuple[str, ...]
    joined: dict[tuple[str, str], str]
    """Connection of each pair of different devices, both ways: NV#, PIX, PXB, PHB, NODE or SYS."""
    numa: dict[str, str]
    """NUMA node of the GPUs, if the table has it."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return tuple(name for name in self.devices if name.startswith("GPU"))

    def nvlinks(self, a: str, b: str) -> int:
        """Number of NVLinks of a pair in the table; behind switches, that of one GPU."""
        cell = self.joined[a, b]
        return int(cell[2:]) if cell.startswith("NV") else 0


def parse_smi(text: str) -> SmiTable:
    """Parse the table.

    Raises:
        TopologyError: There is no table, a row is missing, short or repeated, an entry is unknown, or two entries of
            a pair differ; the message names the row and the column.
    """
    lines = [_COLOUR.sub("", line).split() for line in text.splitlines()]
    head = next((n for n, line in enumerate(lines) if line[:1] == ["GPU0"] and line[1:2] != ["X"]), None)
    if head is None:
        raise TopologyError(
            "got no line of column names with GPU0; expected the output of `nvidia-smi topo -m`"
        )
    devices = _columns(lines[head])
    numa_column = _numa_column(lines[head], len(devices))
    joined: dict[tuple[str, str], str] = {}
    numa: dict[str, str] = {}
    rows = [line for line in lines[head + 1 :] if line and line[0] in devices]
    _check_rows(devices, [row[0] for row in rows])
    for row in rows:
        joined |= _cells(devices, row)
        rest = row[len(devices) + 1 :]
        if numa_column is not None and len(rest) > numa_column:
            numa[row[0]] = rest[numa_column]
    _check_pairs(joined)
    return SmiTable(devices, joined, numa)


def from_smi(
    text: str,
    *,
    name: str = "machine",
    nvlink_bytes_per_s: float = 25e9,
    pcie_bytes_per_s: float = 31.5e9,
    port_rate: str | float = "100gbit",
) -> Topology:
    """Build the topology of a machine from the table.

    If all pairs of GPUs have the same NV#, and more links in total than a GPU can have, they are connected by
    NVSwitches, modelled as one. NVLink hides the PCIe connection of a pair, which is inferred from network ports and
    NUMA nodes as far as possible.

    Args:
        text: Output of `nvidia-smi topo -m`.
        name: Name of the topology.
        nvlink_bytes_per_s: Bandwidth of one NVLink, in bytes per second, each way.
        pcie_bytes_per_s: PCIe bandwidth of a device, in bytes per second, each way.
        port_rate: Rate of a network port.

    Raises:
        TopologyError: Raised by `parse_smi`.
    """
    table = parse_smi(text)
    bridges = _groups(table.devices, _pairs(table, {"PIX", "PXB"}))
    near = _pairs(table, {"PIX", "PXB", "PHB", "NODE"})
    same_node = [
        (a, b) for a in table.numa for b in table.numa if a < b and table.numa[a] == table.numa[b] != "N/A"
    ]
    sockets = _groups(table.devices, [*near, *same_node])
    links = [
        *_nvlinks(table, nvlink_bytes_per_s),
        *_pcie(table, bridges, sockets, pcie_bytes_per_s),
        *_ports(table, bridges, units.parse_rate(port_rate)),
    ]
    ends = {end for link in links for end in (link.source, link.target)}
    switches = [Switch(name=f"pcie{n}", kind="pcie", host="host0") for n in sorted(set(bridges.values()))]
    switches += [
        Switch(name=f"socket{n}", kind="socket", host="host0") for n in sorted(set(sockets.values()))
    ]
    switches += [Switch(name="nvswitch", kind="nvswitch", host="host0")] * ("nvswitch" in ends)
    switches += [Switch(name="network", kind="network")] * ("network" in ends)
    return Topology(
        name=name,
        description="Read from nvidia-smi topo -m. Rates are of the parts, latencies are orders of magnitude.",
        hosts=(Host(name="host0"),),
        devices=tuple(Device(name=gpu.lower(), host="host0") for gpu in table.gpus),
        switches=tuple(switches),
        links=tuple(links),
    )


def _columns(head: list[str]) -> tuple[str, ...]:
    devices: list[str] = []
    for token in head:
        if not _DEVICE.fullmatch(token):
            break
        devices.append(token)
    return tuple(devices)


def _numa_column(head: list[str], devices: int) -> int | None:
    """Place of the NUMA node among what follows the devices; each column is named by two words."""
    rest = head[devices:]
    return 1 if rest[:4] == ["CPU", "Affinity", "NUMA", "Affinity"] else None


def _check_rows(devices: tuple[str, ...], rows: list[str]) -> None:
    for device in devices:
        if rows.count(device) != 1:
            raise TopologyError(
                f"got {rows.count(device)} rows of {device}; expected one for each of the columns "
                f"{', '.join(devices)}, give the whole output of `nvidia-smi topo -m`"
            )


def _cells(devices: tuple[str, ...], row: list[str]) -> dict[tuple[str, str], str]:
    cells = row[1 : len(devices) + 1]
    if len(cells) < len(devices):
        raise TopologyError(
            f"row {row[0]} has {len(cells)} entries; expected {len(devices)}, give the whole output of "
            "`nvidia-smi topo -m`"
        )
    for device, cell in zip(devices, cells, strict=True):
        if not _CELL.fullmatch(cell) or (cell == "X") != (device == row[0]):
            raise TopologyError(
                f"row {row[0]}, column {device}: got {cell!r}; expected X for a device with itself, otherwise NV and a "
                "number, PIX, PXB, PHB, NODE or SYS"
            )
    return {(row[0], device): cell for device, cell in zip(devices, cells, strict=True) if device != row[0]}


def _check_pairs(joined: dict[tuple[str, str], str]) -> None:
    for (a, b), cell in joined.items():
        if joined[b, a] != cell:
            raise TopologyError(
                f"row {a}, column {b}: got {cell}, and {joined[b, a]} the other way; expected the same, give the "
                "output as it was printed"
            )


def _pairs(table: SmiTable, cells: Collection[str]) -> list[tuple[str, str]]:
    return [pair for pair, cell in table.joined.items() if cell in cells]


def _groups(devices: tuple[str, ...], pairs: Collection[tuple[str, str]]) -> dict[str, int]:
    """Index of the group of each device, where the devices of a pair are in one."""
    group = {device: number for number, device in enumerate(devices)}
    for a, b in pairs:
        old, new = group[b], group[a]
        group = {device: new if number == old else number for device, number in group.items()}
    order = {old: new for new, old in enumerate(dict.fromkeys(group.values()))}
    return {device: order[number] for device, number in group.items()}


def _nvlinks(table: SmiTable, rate: float) -> Iterator[Link]:
    gpus = table.gpus
    counts = {(a, b): table.nvlinks(a, b) for a in gpus for b in gpus if gpus.index(a) < gpus.index(b)}
    if len(set(counts.values())) == 1 and max(counts.values()) * (len(gpus) - 1) > _MOST_LINKS:
        for gpu in gpus:
            yield cable(gpu.lower(), "nvswitch", "nvlink", max(counts.values()) * rate, _NVLINK_LATENCY_S / 2)
        return
    for (a, b), count in counts.items():
        if count:
            yield cable(a.lower(), b.lower(), "nvlink", count * rate, _NVLINK_LATENCY_S)


def _pcie(table: SmiTable, bridges: dict[str, int], sockets: dict[str, int], rate: float) -> Iterator[Link]:
    for gpu in table.gpus:
        yield cable(gpu.lower(), f"pcie{bridges[gpu]}", "pcie", rate, _PCIE_LATENCY_S)
    uplinks = dict.fromkeys((bridges[device], sockets[device]) for device in table.devices)
    for bridge, socket in uplinks:
        yield cable(f"pcie{bridge}", f"socket{socket}", "pcie", rate, _PCIE_LATENCY_S)
    for socket in sorted(set(sockets.values())):
        # Sockets meet in the host's memory, at the rate of one device.
        yield cable(f"socket{socket}", "host0", "socket", rate, _PCIE_LATENCY_S)


def _ports(table: SmiTable, bridges: dict[str, int], rate: float) -> Iterator[Link]:
    ports = [bridges[device] for device in table.devices if not device.startswith("GPU")]
    for bridge in dict.fromkeys(ports):
        total = ports.count(bridge) * rate
        yield cable(f"pcie{bridge}", "network", "infiniband", total, _NETWORK_LATENCY_S)
