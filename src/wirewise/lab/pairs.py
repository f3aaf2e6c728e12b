"""Hosts linked pairwise: link rates, their `tc` configuration, and the topology."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from wirewise import units
from wirewise.errors import LabError
from wirewise.lab import shaping
from wirewise.topology import Host, Link, Topology

__all__ = ["Pairs", "pairs_of", "topology_of"]

_LATENCY_S = 5e-5
_PACKET_S, _PACKETS_PER_S = 0.002, 3_000
_LEAST_PACKET, _MOST_PACKET = 3_000, 65_536
_UNLINKED = 125_000.0
"""Bytes per second between hosts that a topology does not link: they must find each other at the start."""


class Pairs:
    """Rates of all pairs of hosts, in bytes per second, the same both ways.

    Each host has an `htb` class for each other host, chosen by destination address.

    Args:
        hosts: Number of hosts.
        link: Rate of the pairs that are not named.
        pairs: Rates of individual pairs; the order of the two hosts does not matter.

    Raises:
        LabError: A pair does not exist or is named twice, or the kernel cannot shape a rate.
    """

    def __init__(self, hosts: int, link: str | float, pairs: Mapping[tuple[int, int], str | float]) -> None:
        self.hosts = hosts
        self.rates = dict.fromkeys(itertools.combinations(range(hosts), 2), _rate(link))
        self.slowed = dict.fromkeys(range(hosts), 1.0)
        """Factor by which a fault slows all links of a host."""
        if len({frozenset(pair) for pair in pairs}) < len(pairs):
            raise LabError(
                f"got a pair of hosts twice in {sorted(pairs)}; the rate holds both ways, name it once"
            )
        for pair, rate in pairs.items():
            self.set(pair, rate)

    def set(self, pair: tuple[int, int], rate: str | float) -> None:
        """Change a rate in this table; `changes` applies it to the kernel."""
        key = (min(pair), max(pair))
        if key not in self.rates:
            raise LabError(f"got the pair {pair}; expected two different hosts from 0 to {self.hosts - 1}")
        self.rates[key] = _rate(rate)

    def totals(self) -> list[float]:
        """Total bandwidth of each host's links, in bytes per second."""
        return [sum(rate for pair, rate in self.rates.items() if host in pair) for host in range(self.hosts)]

    def segment_bytes(self, host: int) -> int:
        """Largest packet that a host should send: short on its slowest link, and few on its fastest, in bytes.

        A packet waits until its class may send all of it: one of 64 KiB takes 20 ms at 25 Mbit/s. But CPUs are few,
        and at 1600 Mbit/s packets of 25 kB instead of 64 KiB cost a third more CPU time.
        """
        rates = [rate for pair, rate in self.rates.items() if host in pair]
        wanted = max(min(rates) * _PACKET_S, max(rates) / _PACKETS_PER_S, _LEAST_PACKET)
        return min(round(wanted), _MOST_PACKET)

    def build(self, host: int, device: str, address: Callable[[int], str]) -> list[str]:
        """`tc` commands that shape the traffic sent by a host."""
        lines = [f"qdisc add dev {device} root handle 1: htb default 0"]
        for peer in self._peers(host):
            lines.append(self._line("add", host, peer, device))
            match = f"u32 match ip dst {address(peer)}/32 flowid 1:{peer + 1:x}"
            lines.append(f"filter add dev {device} parent 1: protocol ip prio 1 {match}")
        return lines

    def changes(self, host: int, device: str) -> Iterator[tuple[int, str]]:
        """Hosts and `tc` commands that apply the current rates to all links of a host, in both directions."""
        for peer in self._peers(host):
            yield host, self._line("change", host, peer, device)
            yield peer, self._line("change", peer, host, device)

    def _peers(self, host: int) -> list[int]:
        return [peer for peer in range(self.hosts) if peer != host]

    def _line(self, verb: str, source: int, target: int, device: str) -> str:
        slowed = max(self.slowed[source], self.slowed[target])
        bytes_per_s = self.rates[min(source, target), max(source, target)] / slowed
        burst = shaping.burst_bytes(bytes_per_s)
        rate = f"{max(round(bytes_per_s * 8), 8)}bit"
        return (
            f"class {verb} dev {device} parent 1: classid 1:{target + 1:x} htb rate {rate} ceil {rate} "
            f"burst {burst}b cburst {burst}b quantum 65536"
        )


def pairs_of(topology: Topology) -> Pairs:
    """Rates of a topology whose hosts are linked pairwise and with nothing else.

    Raises:
        LabError: There are devices or switches, or a link goes one way only; the message says which.
    """
    if topology.devices or topology.switches:
        raise LabError(
            f"topology {topology.name!r} has devices or switches; expected hosts linked with each other, or with one "
            "switch, which is what the lab can build"
        )
    number = {host.name: place for place, host in enumerate(topology.hosts)}
    one_way = [link for link in topology.links if link.direction == "one"]
    if one_way:
        raise LabError(
            f"the link from {one_way[0].source!r} to {one_way[0].target!r} goes one way; the lab shapes both alike"
        )
    rates = {
        (number[link.source], number[link.target]): link.bandwidth_bytes_per_s for link in topology.links
    }
    return Pairs(len(number), _UNLINKED, rates)


def topology_of(pairs: Pairs) -> Topology:
    """Topology of pairwise links at these rates, with one rank per host; latencies are rough estimates."""
    hosts = [f"host{number}" for number in range(pairs.hosts)]
    return Topology(
        name=f"lab-pairs-{pairs.hosts}",
        description="Hosts of a lab that are linked in pairs. The latency is an order of magnitude.",
        hosts=tuple(Host(name=host) for host in hosts),
        links=tuple(
            Link(source=hosts[a], target=hosts[b], latency_s=_LATENCY_S, bandwidth_bytes_per_s=rate)
            for (a, b), rate in pairs.rates.items()
        ),
    )


def _rate(rate: str | float) -> float:
    return shaping.checked(units.parse_rate(rate), "a pair of hosts")
