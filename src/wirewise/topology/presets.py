"""Topologies by name: the lab, a PCIe machine, the DGX machines.

Bandwidths are the documented ones of the parts, per direction, before protocol overhead. Vendors do not document
latencies: those are rough estimates, and plans that depend on them need measured ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from wirewise import units
from wirewise.errors import InputError, TopologyError
from wirewise.topology.clusters import FABRICS, replace_fabric
from wirewise.topology.machines import (
    LAB_LATENCY_S,
    LAB_MESSAGE_S,
    MACHINES,
    dual_cards,
    machine,
    nvswitch_hosts,
    single_ranks,
)
from wirewise.topology.model import Device, Host, Link, Switch, Topology, cable

__all__ = ["PRESETS", "dgx1p", "dgx1v", "lab_hosts", "nvswitch_machine", "pcie_machine", "preset"]

_GB = 1e9
_PCIE_LANES = 16
_PCIE_BYTES_PER_S = {
    3: _PCIE_LANES * 8 * _GB / 8 * 128 / 130,
    4: _PCIE_LANES * 16 * _GB / 8 * 128 / 130,
    5: _PCIE_LANES * 32 * _GB / 8 * 128 / 130,
}
"""Sixteen lanes of a generation: 8, 16, 32 Gbit/s a lane, coded 128b/130b."""
_NVLINK_BYTES_PER_S = 25 * _GB
"""One link of NVLink 2, 3 or 4: 25 GB/s each way; generations differ in the number of links a GPU has."""
_NVLINK_1_BYTES_PER_S = 20 * _GB
_QPI_BYTES_PER_S = 2 * 19.2 * _GB
"""Two links of 9.6 GT/s with two bytes a transfer, each way."""
_LAB_MEMORY_BYTES_PER_S = 2e9
"""TCP between two processes of a host, an order of magnitude."""
_NVLINK_LATENCY_S = 2e-6
_PCIE_LATENCY_S = 1e-6
_NETWORK_LATENCY_S = 2e-6

# Number of NVLinks between pairs of GPUs of a DGX-1 with V100: a hybrid cube mesh, six links a GPU.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2,
    (1, 2): 2, (1, 3): 1, (1, 5): 2,
    (2, 3): 2, (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2,
    (5, 6): 2, (5, 7): 1,
    (6, 7): 2,
}  # fmt: skip


def lab_hosts(
    rates: Sequence[str | float], *, latency_s: float = LAB_LATENCY_S, ranks_per_host: int = 1
) -> Topology:
    """Hosts around one network switch, as built by `wirewise lab`.

    Args:
        rates: Rate of each host's link, such as "200mbit"; a number is bytes per second.
        latency_s: Latency from host to host, in seconds. Defaults to a rough estimate, to be measured.
        ranks_per_host: Number of processes per host; with one, the host itself is the rank.

    Raises:
        TopologyError: There are no rates.
        InputError: A rate is invalid, or a host would have no rank.
    """
    if ranks_per_host < 1:
        raise InputError(f"ranks_per_host is {ranks_per_host}; expected at least 1")
    hosts = [f"host{number}" for number in range(len(rates))]
    own = range(ranks_per_host if ranks_per_host > 1 else 0)
    ranks = [(f"{host}-{number}", host) for host in hosts for number in own]
    return Topology(
        name=f"lab-{len(hosts)}" + (f"x{ranks_per_host}" if ranks_per_host > 1 else ""),
        description="Hosts of a lab. The latency is an order of magnitude.",
        hosts=tuple(Host(name=host, message_s=0.0 if ranks else LAB_MESSAGE_S) for host in hosts),
        devices=tuple(
            Device(name=rank, host=host, kind="cpu", message_s=LAB_MESSAGE_S) for rank, host in ranks
        ),
        # Hosts of a lab share one machine.
        processors=1,
        switches=(Switch(name="bridge", kind="network"),),
        links=(
            *(
                cable(host, "bridge", "ethernet", units.parse_rate(rate), latency_s / 2)
                for host, rate in zip(hosts, rates, strict=True)
            ),
            *(cable(rank, host, "socket", _LAB_MEMORY_BYTES_PER_S, 0.0) for rank, host in ranks),
        ),
    )


def pcie_machine(gpus: int, *, generation: int = 4) -> Topology:
    """One host whose GPUs are on PCIe with sixteen lanes each, two GPUs per PCIe switch.

    Raises:
        TopologyError: There are no GPUs, or the generation is unknown.
    """
    if gpus < 1 or generation not in _PCIE_BYTES_PER_S:
        known = ", ".join(map(str, _PCIE_BYTES_PER_S))
        raise TopologyError(
            f"got {gpus} GPUs on PCIe {generation}; expected at least one, on one of the generations {known}"
        )
    return Topology(
        name=f"pcie-{gpus}",
        description=f"One machine, GPUs on PCIe {generation} x16. Latencies are orders of magnitude.",
        hosts=(Host(name="host0"),),
        devices=tuple(_gpus(gpus)),
        switches=tuple(_pcie_switches(gpus)),
        links=tuple(_pcie_links(gpus, generation)),
    )


def dgx1v() -> Topology:
    """DGX-1 with eight V100: NVLink 2 as a hybrid cube mesh, PCIe 3, two sockets, four ports of EDR."""
    return _dgx1("dgx-1v", "V100", {p: n * _NVLINK_BYTES_PER_S for p, n in _CUBE_MESH.items()})


def dgx1p() -> Topology:
    """DGX-1 with eight P100: as `dgx1v`, with one NVLink 1 link (20 GB/s each way) for each pair of the mesh."""
    return _dgx1("dgx-1p", "P100", dict.fromkeys(_CUBE_MESH, _NVLINK_1_BYTES_PER_S))


def _dgx1(name: str, gpu: str, rates: Mapping[tuple[int, int], float]) -> Topology:
    sockets = ("socket0", "socket1")
    mesh = (cable(f"gpu{a}", f"gpu{b}", "nvlink", rate, _NVLINK_LATENCY_S) for (a, b), rate in rates.items())
    # Memory sits at the sockets; the host itself stands for it and is as near to either.
    between = cable(*sockets, "socket", _QPI_BYTES_PER_S, _PCIE_LATENCY_S)
    memory = (cable("host0", socket, "socket", _QPI_BYTES_PER_S, 0.0) for socket in sockets)
    ports = (
        cable(f"pcie{n}", "network", "infiniband", units.parse_rate("100gbit"), _NETWORK_LATENCY_S)
        for n in range(4)
    )
    return Topology(
        name=name,
        description=f"DGX-1, {gpu}, documented bandwidths. {_LATENCIES}",
        hosts=(Host(name="host0"),),
        devices=tuple(_gpus(8)),
        switches=(
            *_pcie_switches(8),
            *(Switch(name=socket, kind="socket", host="host0") for socket in sockets),
            Switch(name="network", kind="network"),
        ),
        links=(
            *mesh,
            *_pcie_links(8, 3, roots=(*sockets[:1] * 2, *sockets[1:] * 2)),
            between,
            *memory,
            *ports,
        ),
    )


def nvswitch_machine(
    name: str, *, gpus: int, nvlinks: int, pcie: int, ports: int, port_rate: str | float
) -> Topology:
    """One host whose GPUs are connected by NVSwitches, modelled as a single switch.

    Args:
        name: Name of the topology.
        gpus: Number of GPUs.
        nvlinks: Number of NVLinks per GPU, 25 GB/s each way.
        pcie: PCIe generation, with sixteen lanes per GPU and two GPUs per PCIe switch.
        ports: Number of network ports, divided over the PCIe switches.
        port_rate: Rate of each port.

    Raises:
        TopologyError: A number is invalid.
    """
    machine = pcie_machine(gpus, generation=pcie)
    fabric = (
        cable(f"gpu{n}", "nvswitch", "nvlink", nvlinks * _NVLINK_BYTES_PER_S, _NVLINK_LATENCY_S / 2)
        for n in range(gpus)
    )
    attached = [n * len(machine.switches) // ports for n in range(ports)]
    uplinks = (
        cable(
            f"pcie{n}",
            "network",
            "infiniband",
            attached.count(n) * units.parse_rate(port_rate),
            _NETWORK_LATENCY_S,
        )
        for n in sorted(set(attached))
    )
    return Topology(
        name=name,
        description=f"One machine of this kind, documented bandwidths. {_LATENCIES}",
        hosts=machine.hosts,
        devices=machine.devices,
        switches=(
            *machine.switches,
            Switch(name="nvswitch", kind="nvswitch", host="host0"),
            Switch(name="network", kind="network"),
        ),
        links=(*fabric, *machine.links, *uplinks),
    )


_LATENCIES = "Latencies are orders of magnitude."

PRESETS: dict[str, Callable[[], Topology]] = {
    "lab-4": lambda: lab_hosts(["200mbit"] * 4),
    "lab-8": lambda: lab_hosts(["200mbit"] * 8),
    "pcie-4": lambda: pcie_machine(4),
    "pcie-8": lambda: pcie_machine(8),
    "dgx-1p": dgx1p,
    "dgx-1v": dgx1v,
    "dgx-2": lambda: nvswitch_machine("dgx-2", gpus=16, nvlinks=6, pcie=3, ports=8, port_rate="100gbit"),
    "dgx-a100": lambda: nvswitch_machine(
        "dgx-a100", gpus=8, nvlinks=12, pcie=4, ports=8, port_rate="200gbit"
    ),
    "dgx-h100": lambda: nvswitch_machine(
        "dgx-h100", gpus=8, nvlinks=18, pcie=5, ports=8, port_rate="400gbit"
    ),
    # Pairs of ranks with several equal paths: over spines, over the cards of a host, over rails.
    "hostx8@fat-tree-2": lambda: replace_fabric(single_ranks(8), "fat-tree-2"),
    "hostx16@fat-tree-4/2": lambda: replace_fabric(single_ranks(16), "fat-tree-4/2"),
    "dual-nicx4": lambda: dual_cards(4),
    "dgx-a100x2@rails-2": lambda: replace_fabric(
        nvswitch_hosts("dgx-a100x2", 2, 8, 300 * _GB, 25 * _GB), "rails-2"
    ),
}
"""Names for `preset`, besides lab-N, lab-N@RATE, lab-NxR with R ranks on each host, pcie-N, and the models of
`machines`."""

_SIZED = re.compile(r"(lab|pcie)-([1-9]\d{0,3})(?:x([1-9]\d?))?(?:@(.+))?")


def preset(name: str) -> Topology:
    """Build a preset by name: one of `PRESETS`, or "lab-6@50mbit", "lab-4x2", "pcie-2", "ndv2x2" and the like.

    Raises:
        TopologyError: The name is unknown.
        InputError: The rate is invalid.
    """
    if name in PRESETS:
        return PRESETS[name]()
    match = _SIZED.fullmatch(name)
    if match is not None and match[1] == "lab":
        return lab_hosts([match[4] or "200mbit"] * int(match[2]), ranks_per_host=int(match[3] or 1))
    if match is not None and match[3] is None and match[4] is None:
        return pcie_machine(int(match[2]))
    kind, _, fabric = name.partition("@")
    modelled = machine(kind)
    if modelled is not None:
        return replace_fabric(modelled, fabric) if fabric else modelled
    raise TopologyError(
        f"unknown topology {name!r}; expected one of {', '.join(PRESETS)}, lab-N@RATE, lab-NxR, pcie-N, h4, "
        f"h4-quarter, or N machines: {', '.join(f'{kind}xN' for kind in MACHINES)}, such as ndv2x2, behind a fabric: "
        f"{', '.join(f'@{kind}' for kind in FABRICS)}, such as dgx-h100x16@fat-tree/2"
    )


def _gpus(count: int) -> Iterator[Device]:
    return (Device(name=f"gpu{n}", host="host0") for n in range(count))


def _pcie_switches(gpus: int) -> Iterator[Switch]:
    return (Switch(name=f"pcie{n}", kind="pcie", host="host0") for n in range((gpus + 1) // 2))


def _pcie_links(gpus: int, generation: int, roots: Sequence[str] = ()) -> Iterator[Link]:
    """GPUs to their PCIe switches, and those to the socket that is named for each, or to the host."""
    rate = _PCIE_BYTES_PER_S[generation]
    for n in range(gpus):
        yield cable(f"gpu{n}", f"pcie{n // 2}", "pcie", rate, _PCIE_LATENCY_S)
    for n in range((gpus + 1) // 2):
        yield cable(f"pcie{n}", roots[n] if roots else "host0", "pcie", rate, _PCIE_LATENCY_S)
