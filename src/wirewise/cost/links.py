"""Table of links: bandwidth of host interfaces and cost of every pair of ranks, from any source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.collective import Network
from wirewise.cost.link import LinkCost
from wirewise.cost.pairs import (
    Ints,
    Matrix,
    PairCosts,
    Vector,
    between_hosts,
    fastest,
    graph_of,
    hosts_of_names,
    hosts_of_ranks,
    interfaces_of,
    inverse,
    pairs_of,
    rates_of,
    with_payload,
)
from wirewise.cost.routes import routes_of
from wirewise.cost.traces import host_rates, hosts_of, transfers_of
from wirewise.cost.wire import Channels, competing_bytes, exchange_s
from wirewise.errors import InputError
from wirewise.topology import Topology, lab_hosts
from wirewise.trace import Trace

__all__ = ["TCP_PAYLOAD", "Links"]

TCP_PAYLOAD = 0.957
"""Fraction of a link's rate that TCP leaves for the payload, in frames of 1500 bytes."""


@dataclass(frozen=True)
class Links:
    """Bandwidths and latencies of H hosts and of their P ranks; an infinite bandwidth is never shared.

    Raises:
        InputError: Shapes do not match, a bandwidth is not positive, a latency is negative, or a rank is on a host
            that does not exist.
    """

    bandwidth_out_bytes_per_s: Vector
    """Rate out of each host, [H]."""
    bandwidth_in_bytes_per_s: Vector
    """Rate into each host, [H]."""
    latency_s: Matrix
    """Seconds from host to host, [H, H]; on the diagonal, between ranks of one host."""
    intra_bytes_per_s: Vector
    """Rate between the ranks of each host, all together, [H]."""
    burden: Mapping[str, float] = field(default_factory=dict)
    """Effective bytes on the interface per byte of each collective. Defaults to 1.

    Libraries reach a higher bandwidth with some collectives than with others.
    """
    host_of_rank: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Host index of each rank, [P]. Defaults to one rank per host."""
    known: PairCosts | None = None
    """Costs of all pairs of ranks, if measured or given by a topology; see `pairs`."""
    ring: bool = False
    """Whether halo messages are sent in the rounds of a ring; otherwise all at once."""
    network: Network | None = None
    """Network that the table was built from. None if it was not built from a topology that connects its ranks."""
    call_s: float = 0.0
    """Fixed seconds of each collective in addition to its messages: the library's launch and wake-up."""

    def __post_init__(self) -> None:
        hosts = len(self.bandwidth_out_bytes_per_s)
        if not len(self.host_of_rank):
            object.__setattr__(self, "host_of_rank", np.arange(hosts))
        for name in ("bandwidth_out_bytes_per_s", "bandwidth_in_bytes_per_s", "intra_bytes_per_s"):
            rates = getattr(self, name)
            if rates.shape != (hosts,) or not (rates > 0).all():
                raise InputError(f"{name} is {rates}; expected a rate above 0 for each of {hosts} hosts")
        latency, host = self.latency_s, self.host_of_rank
        if not 0 <= self.call_s < np.inf:
            raise InputError(f"call_s is {self.call_s}; expected finite seconds of at least 0")
        if bad := {name: by for name, by in self.burden.items() if not 0 < by < np.inf}:
            raise InputError(f"burden is {bad}; expected finite factors above 0")
        if latency.shape != (hosts, hosts) or not (latency >= 0).all() or not np.isfinite(latency).all():
            raise InputError(
                f"latency_s has shape {latency.shape} and least value {latency.min(initial=0)}; expected "
                f"finite seconds >= 0 from each of {hosts} hosts to each"
            )
        if host.ndim != 1 or (host < 0).any() or (host >= hosts).any():
            raise InputError(
                f"host_of_rank is {host.tolist()}; expected a number from 0 to {hosts - 1} a rank"
            )
        if self.known is not None and self.known.latency_s.shape != (len(host), len(host)):
            raise InputError(
                f"got costs of pairs of {len(self.known.latency_s)} ranks; expected those of all {len(host)}"
            )

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.bandwidth_out_bytes_per_s)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.host_of_rank)

    @property
    def interface_bytes_per_s(self) -> float:
        """Bandwidth of the slowest interface of a host with ranks, in either direction, in bytes per second."""
        used = self.ranks_of_host > 0
        ways = (self.bandwidth_out_bytes_per_s, self.bandwidth_in_bytes_per_s)
        return float(min(way[used].min(initial=np.inf) for way in ways))

    @property
    def inside_bytes_per_s(self) -> float:
        """Bandwidth of each rank inside the slowest host while all of its ranks send; infinite if one rank per host."""
        several = self.ranks_of_host > 1
        return float((self.intra_bytes_per_s[several] / self.ranks_of_host[several]).min(initial=np.inf))

    @property
    def round_s(self) -> float:
        """Largest latency between hosts with ranks, or inside one with several, in seconds; the time of a round."""
        ranks = self.ranks_of_host
        joined = np.outer(ranks > 0, ranks > 0) & ~np.diag(ranks < 2)
        return float(self.latency_s[joined].max(initial=0.0))

    @cached_property
    def ranks_of_host(self) -> Ints:
        """Number of ranks on each host, [H]."""
        return np.bincount(self.host_of_rank, minlength=self.hosts)

    @classmethod
    def of(cls, topology: Topology, *, payload: float = 1.0) -> Links:
        """Build the links of a topology; measured pairs keep their measured costs.

        An interface has the total bandwidth of its host's links to other hosts and to switches between hosts;
        contention elsewhere is ignored. A pair of ranks uses the widest path between them (`collective.network`). If
        the ranks are not connected, latencies are 0 and pairs have the bandwidth of their hosts' interfaces.

        Args:
            topology: Hosts, devices and links.
            payload: Fraction of the bandwidth of Ethernet links left for the payload: 1 if bandwidths were measured
                by messages, `TCP_PAYLOAD` if they are line rates.

        Raises:
            InputError: A host has no link to others, or the fraction is not above 0 and at most 1.
        """
        topology = with_payload(topology, payload)
        out, into = interfaces_of(topology)
        hosts, graph = hosts_of_ranks(topology), graph_of(topology)
        if graph is None:
            return cls(
                out, into, np.zeros((len(out), len(out))), np.full(len(out), np.inf), host_of_rank=hosts
            )
        known = routes_of(graph, hosts_of_names(topology, graph.vertices).tolist())
        latency, intra = between_hosts(known, hosts, len(out))
        return cls(out, into, latency, intra, host_of_rank=hosts, known=known, network=graph)

    @classmethod
    def of_lab(cls, rates: Sequence[str | float], *, payload: float = TCP_PAYLOAD, **options: Any) -> Links:
        """Build the links of a lab's hosts, at the bandwidth that TCP leaves of their line rates.

        Args:
            rates: Line rate of each host's link, such as "200mbit"; a number is bytes per second.
            payload: Usable fraction of the line rates. Defaults to what TCP, IP and Ethernet headers leave.
            **options: Options of `topology.lab_hosts`: `ranks_per_host`, `latency_s`.

        Raises:
            TopologyError: There are no rates.
            InputError: A rate is invalid.
        """
        return cls.of(lab_hosts(rates, **options), payload=payload)

    @classmethod
    def of_pairs(
        cls,
        costs: Mapping[tuple[int, int], LinkCost] | LinkCost,
        world_size: int,
        *,
        hosts: Sequence[int] | NDArray[np.int64] | None = None,
        ring: bool = False,
    ) -> Links:
        """Build links from measured pairs; a host's fastest pair defines the bandwidth of its interface.

        Args:
            costs: Costs of each (sender, receiver), or one cost for all.
            world_size: Number of ranks.
            hosts: Host number of each rank. Defaults to one rank per host.
            ring: Whether halo messages are sent in the rounds of a ring.

        Raises:
            InputError: A pair is missing, or the hosts are not one number below `world_size` per rank.
        """
        host = np.arange(world_size) if hosts is None else np.asarray(hosts, dtype=np.int64)
        if host.shape != (world_size,) or (host < 0).any() or (host >= max(world_size, 1)).any():
            raise InputError(
                f"hosts is {host.tolist()}; expected {world_size} numbers from 0 to {world_size - 1}, one "
                "a rank"
            )
        pairs, count = pairs_of(costs, world_size), int(host.max(initial=-1)) + 1
        latency, intra = between_hosts(pairs, host, count)
        return cls(*rates_of(pairs, host, count), latency, intra, host_of_rank=host, known=pairs, ring=ring)

    @classmethod
    def fit(cls, trace: Trace) -> Links:
        """Fit bandwidths and latencies to the collectives and messages of an aligned trace (`fit_transfers`).

        A ring runs at the pace of its slowest link, so collectives reveal only the lowest bandwidth. Hosts for which
        `probed_rates` measured clearly more get that much more. If no collective crosses hosts, the bandwidth is
        `TCP_PAYLOAD` of the rate in the trace's headers, or unlimited.

        Raises:
            InputError: A collective ends before its last rank joined, which means that clocks are not aligned.
        """
        between, inside = transfers_of(trace)
        hosts = hosts_of(trace)
        named = [r.header.link_bytes_per_s for r in trace.ranks if r.header.link_bytes_per_s > 0]
        count = int(hosts.max(initial=0)) + 1
        table = cls.uniform(
            count,
            between.bandwidth_bytes_per_s if between else TCP_PAYLOAD * min(named) if named else np.inf,
            between.latency_s if between else 0.0,
            intra_bytes_per_s=inside.bandwidth_bytes_per_s if inside else np.inf,
            intra_latency_s=inside.latency_s if inside else 0.0,
        )
        known = between or inside
        table = replace(table, host_of_rank=hosts.astype(np.int64), burden=known.burden if known else {})
        if between and (rates := host_rates(trace, between.bandwidth_bytes_per_s)) is not None:
            table = replace(table, bandwidth_out_bytes_per_s=rates[0], bandwidth_in_bytes_per_s=rates[1])
        return table

    @classmethod
    def uniform(
        cls,
        hosts: int,
        bandwidth_bytes_per_s: float,
        latency_s: float = 0.0,
        *,
        intra_bytes_per_s: float = np.inf,
        intra_latency_s: float = 0.0,
        ranks_per_host: int = 1,
        ring: bool = False,
    ) -> Links:
        """Build links of equal hosts with the same bandwidth in both directions."""
        latency = np.full((hosts, hosts), float(latency_s))
        np.fill_diagonal(latency, intra_latency_s)
        rate, ranks = (
            np.full(hosts, float(bandwidth_bytes_per_s)),
            np.repeat(np.arange(hosts), ranks_per_host),
        )
        intra = np.full(hosts, float(intra_bytes_per_s))
        return cls(rate, rate.copy(), latency, intra, host_of_rank=ranks, ring=ring)

    @cached_property
    def pairs(self) -> PairCosts:
        """Times of messages between two ranks without contention, [sender, receiver].

        Known pair costs, else the slower of the two hosts' interfaces.
        """
        if self.known is not None:
            return self.known
        slope = np.maximum(1 / self.bandwidth_out_bytes_per_s[:, None], 1 / self.bandwidth_in_bytes_per_s)
        np.fill_diagonal(slope, 1 / self.intra_bytes_per_s)
        ends = np.ix_(self.host_of_rank, self.host_of_rank)
        return PairCosts(self.latency_s[ends], slope[ends])

    def pair(self, sender: int, receiver: int) -> LinkCost:
        """Cost of a message from one rank to another.

        Raises:
            InputError: The ranks do not exist, are equal, or are not connected.
        """
        ranks = range(self.world_size)
        if sender not in ranks or receiver not in ranks or sender == receiver:
            raise InputError(
                f"got the pair {sender} -> {receiver}; expected two different ranks below {self.world_size}"
            )
        cost = self.pairs.cost(sender, receiver)
        if not np.isfinite(cost.s_per_byte):
            raise InputError(f"no path leads from rank {sender} to rank {receiver} past no other; add a link")
        return cost

    @cached_property
    def channels(self) -> Channels:
        """Table in the form that compiled exchanges read."""
        _, host = np.unique(self.host_of_rank, return_inverse=True)
        slope = self.pairs.s_per_byte
        sides = zip(
            fastest(slope, self.host_of_rank, self.hosts),
            (self.bandwidth_out_bytes_per_s, self.bandwidth_in_bytes_per_s),
            strict=True,
        )
        # What a byte of the fastest pair takes is told as it was measured, not as the inverse of its rounded inverse.
        out, into = (
            np.where(inverse(best) == rate, best, 1 / rate)[self.host_of_rank] for best, rate in sides
        )
        out, into = (np.where(np.isfinite(side), side, 0.0) for side in (out, into))
        return Channels(self.pairs.latency_s, slope, out, into, host.astype(np.int64), self.ring)

    def load(self, size: Matrix | NDArray[np.int64]) -> Matrix:
        """Bytes that compete with each channel on its slower interface, [sender, receiver].

        Arrival times are fitted against these bytes, not the channel's own, so that `wire_s` reproduces the
        measurement.
        """
        return competing_bytes(size, self.channels)

    def wire_s(self, size: Matrix | NDArray[np.int64]) -> Vector:
        """Seconds until each rank has all its rows, [P], for bytes [sender, receiver] (`cost.wire`).

        Raises:
            InputError: The bytes are of another number of ranks, or between ranks that are not connected.
        """
        if size.shape != (self.world_size, self.world_size):
            raise InputError(
                f"got bytes of shape {size.shape}, the links are those of {self.world_size} ranks; "
                "measure the links of this job"
            )
        found = exchange_s(size, self.channels)
        if not np.isfinite(found).all():
            raise InputError(
                f"rank {int(np.argmax(found))} gets bytes from one to which no path leads past other ranks; add a link"
            )
        return found

    def with_pairs(self, pairs: PairCosts) -> Links:
        """Table with other pair costs; interfaces that matched their fastest pair still do."""
        best, host = fastest(self.pairs.s_per_byte, self.host_of_rank, self.hosts), self.host_of_rank
        own = (self.bandwidth_out_bytes_per_s, self.bandwidth_in_bytes_per_s)
        out, into = (
            np.where(inverse(before) == rate, after, rate)
            for before, rate, after in zip(best, own, rates_of(pairs, host, self.hosts), strict=True)
        )
        latency, intra = between_hosts(pairs, host, self.hosts)
        return Links(out, into, latency, intra, self.burden, host, pairs, self.ring, call_s=self.call_s)

    def scaled(self, factor: float, host: int | None = None) -> Links:
        """Links with the bandwidth of all hosts, or of one host, scaled in both directions.

        A known pair is scaled by the smaller factor of its two ends, as it is unknown which end limited it.
        """
        by = np.ones(self.hosts)
        by[slice(None) if host is None else host] = factor
        known, ends = self.known, by[self.host_of_rank]
        if known is not None:
            crosses = self.channels.crosses_hosts
            pair = np.where(crosses, np.minimum(ends[:, None], ends), 1.0)
            known = PairCosts(known.latency_s, known.s_per_byte / pair)
        return replace(
            self,
            bandwidth_out_bytes_per_s=self.bandwidth_out_bytes_per_s * by,
            bandwidth_in_bytes_per_s=self.bandwidth_in_bytes_per_s * by,
            known=known,
            network=None,
        )

    def of_hosts(self, hosts: NDArray[np.int64]) -> Links:
        """Links of other hosts, each a copy of the given host here with its number of ranks, [new H]."""
        latency = self.latency_s[np.ix_(hosts, hosts)]
        if self.hosts > 1:
            # Two hosts that stand for the same one are as far apart as two different hosts here.
            apart = self.latency_s[~np.eye(self.hosts, dtype=bool)].mean()
            same = (hosts[:, None] == hosts[None, :]) & ~np.eye(len(hosts), dtype=bool)
            latency[same] = apart
        return Links(
            self.bandwidth_out_bytes_per_s[hosts],
            self.bandwidth_in_bytes_per_s[hosts],
            latency,
            self.intra_bytes_per_s[hosts],
            self.burden,
            np.repeat(np.arange(len(hosts)), self.ranks_of_host[hosts]),
            ring=self.ring,
            call_s=self.call_s,
        )
