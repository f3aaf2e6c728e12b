"""Servers of a lab: hosts that share a switch, with one shaped uplink per switch.

The switches of all servers connect to a core switch. All and only the traffic that leaves a server crosses its
uplink, so the uplink's counters are the bytes between servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wirewise import units
from wirewise.errors import LabError
from wirewise.lab.counters import HostBytes, read_counters
from wirewise.topology import Host, Link, Switch, Topology

__all__ = ["Servers"]

_LATENCY_S = 5e-5
"""Latency from host to host in a server, an order of magnitude; twice as much between servers."""


class Servers:
    """Assignment of hosts to servers, and the rate between servers.

    Args:
        hosts: Number of hosts.
        servers: Hosts of each server; each host is in one server.
        uplink: Rate of each server's link to the others, separately in each direction.

    Raises:
        LabError: There is only one server, or hosts are in none or in two.
    """

    def __init__(self, hosts: int, servers: Sequence[Sequence[int]], uplink: str | float) -> None:
        self.hosts = tuple(tuple(server) for server in servers)
        """Hosts of each server."""
        listed = sorted(host for server in self.hosts for host in server)
        if len(self.hosts) < 2 or listed != list(range(hosts)):
            raise LabError(
                f"got the servers {[list(server) for server in self.hosts]}; expected at least two, with each of the "
                f"hosts 0 to {hosts - 1} once"
            )
        self.uplink_bytes_per_s = units.parse_rate(uplink)

    @property
    def interfaces(self) -> list[tuple[str, str]]:
        """Both ends of each server's uplink, in the switches' namespace: at the server and at the core."""
        return [(f"up{number}", f"down{number}") for number in range(len(self.hosts))]

    def switch(self, host: int) -> str:
        """Name of the bridge that a host is attached to."""
        return f"server{next(n for n, server in enumerate(self.hosts) if host in server)}"

    def devices(self) -> list[str]:
        """`ip` commands that create the servers' switches and join them with the core bridge."""
        lines = []
        for number, (up, down) in enumerate(self.interfaces):
            lines += [
                f"link add name server{number} type bridge mcast_snooping 0",
                f"link add name {up} type veth peer name {down}",
            ]
            for device in (f"server{number}", up, down):
                lines.append(f"link set dev {device} addrgenmode none")
            lines += [
                f"link set dev server{number} up",
                f"link set dev {up} master server{number} up",
                f"link set dev {down} master bridge up",
            ]
        return lines

    def counters(self, path: Path) -> list[HostBytes]:
        """Bytes that left (`tx_bytes`) and entered (`rx_bytes`) each server, from the switches' /proc/PID/net/dev."""
        found = [read_counters(path, up) for up, _ in self.interfaces]
        return [read for read in found if read is not None]

    def topology(self, rates: Sequence[float]) -> Topology:
        """Topology of these servers, with one rank per host.

        Args:
            rates: Bytes per second of each host's link.
        """
        names = [f"host{number}" for number in range(len(rates))]
        ends = [(name, self.switch(host), rates[host]) for host, name in enumerate(names)]
        ends += [(f"server{n}", "middle", self.uplink_bytes_per_s) for n in range(len(self.hosts))]
        return Topology(
            name=f"lab-{len(self.hosts)}-servers",
            description="Hosts of a lab behind the switches of servers. The latency is an order of magnitude.",
            hosts=tuple(Host(name=name) for name in names),
            switches=tuple(
                Switch(name=name, kind="network")
                for name in [*(f"server{n}" for n in range(len(self.hosts))), "middle"]
            ),
            links=tuple(
                Link(source=a, target=b, latency_s=_LATENCY_S / 2, bandwidth_bytes_per_s=rate)
                for a, b, rate in ends
            ),
        )
