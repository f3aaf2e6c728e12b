"""Clusters of unequal machines, drawn from a seed."""

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
    """A machine of equal devices."""

    devices: int
    type: str
    speed: float
    """Factor next to the device that jobs are measured on."""
    port_bytes_per_s: float
    """Rate of its link to the others, each way."""
    memory_bytes: float = 0.0
    """Memory of a device; 0: not known."""
    inside_bytes_per_s: float = 8e9
    """Rate of a device to others of the machine."""


def unequal_hosts(
    hosts: list[UnequalHost], *, name: str = "unequal", latency_s: float = 5e-5, inside_s: float = 1e-5
) -> Topology:
    """Machines around one switch.

    Args:
        hosts: Machines in the order of their ranks.
        name: Name of the topology.
        latency_s: Latency from one machine to another.
        inside_s: Latency between two devices of a machine.

    Raises:
        TopologyError: A rate or speed that is none.
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
    """Two to four machines of types, numbers of devices and rates that are drawn; no two need be alike.

    Args:
        seed: Seed of all that is drawn.
        hosts: Number of machines; 0: drawn.
        most_devices: Largest number of devices of a machine.
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
