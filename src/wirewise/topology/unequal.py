"""Random clusters of unequal machines, from a seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wirewise.topology.model import Device, Host, Link, Switch, Topology, cable

__all__ = ["UnequalHost", "random_unequal", "unequal_hosts"]

_TYPES = (("p100", 0.55, 10e9), ("1080ti", 0.65, 9e9), ("v100", 1.0, 14e9), ("a100", 2.2, 38e9))
"""Name, speed next to a V100, and bytes that tensors can have."""
_PORTS_BYTES_PER_S = (0.125e9, 0.3e9, 1.25e9, 2.8e9, 5e9)
_INSIDE_BYTES_PER_S = (8e9, 20e9)


class UnequalHost(NamedTuple):
    """Machine of equal devices."""

    devices: int
    type: str
    speed: float
    """Speed relative to the device that jobs are measured on."""
    port_bytes_per_s: float
    """Bandwidth of its link to the others, in each direction."""
    memory_bytes: float = 0.0
    """Memory of a device, in bytes; 0 if unknown."""
    inside_bytes_per_s: float = 8e9
    """Bandwidth between devices of the machine."""


def unequal_hosts(
    hosts: list[UnequalHost], *, name: str = "unequal", latency_s: float = 5e-5, inside_s: float = 1e-5
) -> Topology:
    """Build machines around one switch.

    Args:
        hosts: Machines in the order of their ranks.
        name: Name of the topology.
        latency_s: Latency between machines, in seconds.
        inside_s: Latency between two devices of a machine, in seconds.

    Raises:
        TopologyError: A rate or speed is invalid.
    """
    devices: list[Device] = []
    links: list[Link] = []
    for number, one in enumerate(hosts):
        host = f"host{number}"
        links.append(cable(host, "switch", "ethernet", one.port_bytes_per_s, (latency_s - inside_s) / 2))
        for _ in range(one.devices):
            device = f"gpu{len(devices)}"
            devices.append(
                Device(name=device, host=host, type=one.type, speed=one.speed, memory_bytes=one.memory_bytes)
            )
            links.append(cable(device, host, "pcie", one.inside_bytes_per_s, inside_s / 2))
    return Topology(
        name=name,
        hosts=tuple(Host(name=f"host{number}") for number in range(len(hosts))),
        devices=tuple(devices),
        switches=(Switch(name="switch", kind="network"),),
        links=tuple(links),
    )


def random_unequal(seed: int, *, hosts: int = 0, most_devices: int = 4) -> Topology:
    """Sample two to four machines with random types, numbers of devices and rates.

    Args:
        seed: Seed of all random choices.
        hosts: Number of machines; 0 for a random one.
        most_devices: Maximum number of devices per machine.
    """
    random = np.random.default_rng([seed, 29])
    drawn = []
    for _ in range(hosts or int(random.integers(2, 5))):
        name, speed, memory_bytes = _TYPES[random.integers(len(_TYPES))]
        drawn.append(
            UnequalHost(
                devices=int(random.integers(1, most_devices + 1)),
                type=name,
                speed=speed,
                port_bytes_per_s=float(random.choice(_PORTS_BYTES_PER_S)),
                memory_bytes=memory_bytes,
                inside_bytes_per_s=float(random.choice(_INSIDE_BYTES_PER_S)),
            )
        )
    return unequal_hosts(drawn, name=f"unequal-{seed}")
