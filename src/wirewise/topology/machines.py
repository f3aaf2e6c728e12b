"""Machine models of the papers on synthesized collectives, one or several joined by a network.

These hold only what collectives between accelerators use (fabric and network ports) at the rates that TACCL, TE-CCL
and ForestColl give; `presets` has whole machines with PCIe and sockets at documented rates. Bounds and plans can thus
be compared with published ones. Latencies are rough estimates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from wirewise import units
from wirewise.errors import TopologyError
from wirewise.topology.model import Device, Direction, Host, Link, LinkKind, Switch, Topology, cable

__all__ = [
    "LAB_LATENCY_S",
    "LAB_MESSAGE_S",
    "MACHINES",
    "dgx2_paired_ports",
    "dual_cards",
    "machine",
    "mi250",
    "ndv2",
    "nvswitch_hosts",
    "pairwise_hosts",
    "single_ranks",
]

_GB = 1e9
_FABRIC_LATENCY_S = 7e-7
_NETWORK_LATENCY_S = 1.7e-6
LAB_LATENCY_S = 5e-5
LAB_MESSAGE_S = 4e-5
"""CPU time of a message over TCP on a small busy machine, in seconds; an order of magnitude: 20 to 100 us fit
all-reduces of 64 bytes to 64 kB on four hosts."""
_HOST_MESSAGE_S = 1e-5
"""Processor seconds of a message of a rank that has a machine to itself, an order of magnitude."""

# Rows of the number of NVLinks between the GPUs of an NDv2, labelled as in TACCL and TE-CCL. The DGX-1V is the
# same graph with other labels.
_NDV2 = (
    "02112000", "20120100", "11020020", "12200001",
    "20000211", "01002012", "00201102", "00011220",
)  # fmt: skip

# Links of 50 GB/s between the dies of a machine with eight MI250 (ForestColl, TE-CCL).
_MI250 = {
    (0, 1): 4, (0, 4): 2, (0, 8): 1, (1, 5): 1, (1, 9): 1, (1, 10): 1, (2, 3): 4, (2, 6): 1,
    (2, 9): 1, (2, 10): 1, (3, 7): 2, (3, 11): 1, (4, 5): 4, (4, 6): 1, (5, 6): 1, (5, 7): 1,
    (6, 7): 4, (8, 9): 4, (8, 12): 2, (9, 13): 1, (10, 11): 4, (10, 14): 1, (11, 15): 2, (12, 13): 4,
    (12, 14): 1, (13, 14): 1, (13, 15): 1, (14, 15): 4,
}  # fmt: skip

_H4 = {(0, 1): 1600, (2, 3): 1600, (0, 2): 400, (0, 3): 100, (1, 2): 100, (1, 3): 100}


def ndv2(hosts: int = 1) -> Topology:
    """Azure NDv2: eight V100 on NVLink; GPU 0 of a host sends to other hosts, GPU 1 receives, at 12.5 GB/s.

    Raises:
        TopologyError: The number of hosts is zero.
    """
    mesh = {(a, b): int(row[b]) for a, row in enumerate(_NDV2) for b in range(a + 1, 8) if row[b] != "0"}
    links = [*_meshes(hosts, mesh, 25 * _GB, "nvlink")]
    if hosts > 1:
        for host in range(hosts):
            links.append(_port(f"gpu{8 * host}", "network", 12.5 * _GB, "one"))
            links.append(_port("network", f"gpu{8 * host + 1}", 12.5 * _GB, "one"))
    return _made(f"ndv2x{hosts}", hosts, 8, links, _network(hosts))


def mi250(hosts: int = 1) -> Topology:
    """Machines of eight MI250, sixteen dies on xGMI at 50 GB/s per link, 16 GB/s per die to the network (ForestColl).

    Raises:
        TopologyError: The number of hosts is zero.
    """
    links = [*_meshes(hosts, _MI250, 50 * _GB, "xgmi"), *_ports(hosts, 16, 16 * _GB)]
    return _made(f"mi250x{hosts}", hosts, 16, links, _network(hosts))


def nvswitch_hosts(name: str, hosts: int, gpus: int, fabric: float, port: float) -> Topology:
    """Hosts of GPUs around one switch each, with one network port per GPU.

    Args:
        name: Name of the topology.
        hosts: Number of machines.
        gpus: Number of GPUs per machine.
        fabric: Bandwidth of a GPU to and from the switch, in bytes per second.
        port: Bandwidth of a GPU to and from the network, in bytes per second.

    Raises:
        TopologyError: The number of hosts is zero.
    """
    links = [*_fabrics(hosts, gpus, fabric), *_ports(hosts, gpus, port)]
    return _made(name, hosts, gpus, links, [*_nvswitches(hosts), *_network(hosts)])


def dgx2_paired_ports(hosts: int = 1) -> Topology:
    """Build DGX-2 machines: sixteen V100 at 125 GB/s on a switch, one port of 12.5 GB/s for each pair of them.

    Raises:
        TopologyError: The number of hosts is zero.
    """
    links, switches = [*_fabrics(hosts, 16, 125 * _GB)], [*_nvswitches(hosts), *_network(hosts)]
    for pair in range(8 * hosts if hosts > 1 else 0):
        switches.append(Switch(name=f"port{pair}", kind="pcie", host=f"host{pair // 8}"))
        links += [_port(f"gpu{2 * pair + n}", f"port{pair}", 12.5 * _GB, latency_s=0.0) for n in range(2)]
        links.append(_port(f"port{pair}", "network", 12.5 * _GB))
    return _made(f"dgx-2x{hosts}", hosts, 16, links, switches)


def relayed_ports(hosts: int = 1) -> Topology:
    """DGX-2 as in TACCL's first sketch: of two GPUs with a port, the odd one sends, the even one receives.

    Raises:
        TopologyError: The number of hosts is zero.
    """
    links = [*_fabrics(hosts, 16, 125 * _GB)]
    for gpu in range(16 * hosts if hosts > 1 else 0):
        ends = (f"gpu{gpu}", "network") if gpu % 2 else ("network", f"gpu{gpu}")
        links.append(_port(*ends, 12.5 * _GB, "one"))
    name = f"dgx-2-relayedx{hosts}"
    return _made(name, hosts, 16, links, [*_nvswitches(hosts), *_network(hosts)])


def single_ranks(hosts: int = 1) -> Topology:
    """Hosts of one rank with one 200 Gbit/s card each.

    Raises:
        TopologyError: The number of hosts is zero.
    """
    links = [_port(f"host{host}", "network", 25 * _GB) for host in range(hosts if hosts > 1 else 0)]
    return _made(f"hostx{hosts}", hosts, 0, links, _network(hosts))


def dual_cards(hosts: int = 1) -> Topology:
    """Hosts of one rank with two 200 Gbit/s cards each, every card on the switch of its plane.

    Raises:
        TopologyError: The number of hosts is zero.
    """
    planes = [f"plane{number}" for number in range(2)] if hosts > 1 else []
    links = [_port(f"host{host}", plane, 25 * _GB) for host in range(hosts) for plane in planes]
    return _made(
        f"dual-nicx{hosts}", hosts, 0, links, [Switch(name=plane, kind="network") for plane in planes]
    )


def pairwise_hosts(
    name: str, rates: Mapping[tuple[int, int], str | float], *, latency_s: float = LAB_LATENCY_S
) -> Topology:
    """Hosts with a dedicated link for each pair, both ways; each host is one rank.

    Args:
        name: Name of the topology.
        rates: Rates of each pair, such as {(0, 1): "400mbit"}; a number is bytes per second.
        latency_s: Latency from host to host, in seconds, to be measured.

    Raises:
        TopologyError: There are no pairs.
        InputError: A rate is invalid.
    """
    hosts = range(max((max(pair) for pair in rates), default=-1) + 1)
    links = [
        cable(f"host{a}", f"host{b}", "ethernet", units.parse_rate(rate), latency_s)
        for (a, b), rate in rates.items()
    ]
    return Topology(
        name=name,
        description="Hosts with a link for each pair. The latency is an order of magnitude.",
        hosts=tuple(Host(name=f"host{n}", message_s=LAB_MESSAGE_S) for n in hosts),
        processors=1,
        links=tuple(links),
    )


MACHINES: dict[str, Callable[[int], Topology]] = {
    "ndv2": ndv2,
    "dgx-2": dgx2_paired_ports,
    "dgx-2-relayed": relayed_ports,
    "dgx-a100": lambda hosts: nvswitch_hosts(f"dgx-a100x{hosts}", hosts, 8, 300 * _GB, 25 * _GB),
    "dgx-h100": lambda hosts: nvswitch_hosts(f"dgx-h100x{hosts}", hosts, 8, 450 * _GB, 50 * _GB),
    "mi250": mi250,
    "host": single_ranks,
    "dual-nic": dual_cards,
}
"""Factories of machines by name; each takes the number of hosts."""

_SIZED = re.compile(r"(.+)x([1-9]\d{0,2})")


def machine(name: str) -> Topology | None:
    """Machine by name, such as "dgx-a100x2" for two hosts; "h4" and "h4-quarter" are uneven lab networks of four.

    Returns:
        None if the name is unknown.
    """
    if name in ("h4", "h4-quarter"):
        divisor = 4 if name == "h4-quarter" else 1
        return pairwise_hosts(name, {pair: f"{rate // divisor}mbit" for pair, rate in _H4.items()})
    match = _SIZED.fullmatch(name)
    maker = MACHINES.get(match[1]) if match else None
    return maker(int(match[2])) if match and maker else None


def _made(name: str, hosts: int, gpus: int, links: list[Link], switches: list[Switch]) -> Topology:
    if hosts < 1:
        raise TopologyError(f"got {hosts} hosts; expected at least one")
    return Topology(
        name=name,
        description="Fabric and network ports, at the rates of published models. Latencies are orders of magnitude.",
        hosts=tuple(Host(name=f"host{n}", message_s=0.0 if gpus else _HOST_MESSAGE_S) for n in range(hosts)),
        devices=tuple(Device(name=f"gpu{n}", host=f"host{n // gpus}") for n in range(hosts * gpus)),
        switches=tuple(switches),
        links=tuple(links),
    )


def _network(hosts: int) -> list[Switch]:
    return [Switch(name="network", kind="network")] if hosts > 1 else []


def _nvswitches(hosts: int) -> list[Switch]:
    return [Switch(name=f"nvswitch{n}", kind="nvswitch", host=f"host{n}") for n in range(hosts)]


def _fabrics(hosts: int, gpus: int, rate: float) -> Iterator[Link]:
    for gpu in range(hosts * gpus):
        yield cable(f"gpu{gpu}", f"nvswitch{gpu // gpus}", "nvlink", rate, _FABRIC_LATENCY_S / 2)


def _meshes(hosts: int, mesh: Mapping[tuple[int, int], int], rate: float, kind: LinkKind) -> Iterator[Link]:
    gpus = max(max(pair) for pair in mesh) + 1
    for first in range(0, hosts * gpus, gpus):
        for (a, b), count in mesh.items():
            yield cable(f"gpu{first + a}", f"gpu{first + b}", kind, count * rate, _FABRIC_LATENCY_S)


def _ports(hosts: int, gpus: int, rate: float) -> Iterator[Link]:
    for gpu in range(hosts * gpus if hosts > 1 else 0):
        yield _port(f"gpu{gpu}", "network", rate)


def _port(
    source: str,
    target: str,
    rate: float,
    direction: Direction = "both",
    latency_s: float = _NETWORK_LATENCY_S / 2,
) -> Link:
    return cable(source, target, "infiniband", rate, latency_s, direction)
