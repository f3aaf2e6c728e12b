"""How long one exchange of halo messages takes, and what that does to an epoch.

All ranks send at once, or in the rounds of a ring. Sent at once, a channel takes at least its own time, and
at least the time that the interfaces at its ends need for everything that they carry: channels of a host
share its interface. So rank r has its rows after

    wire_r = max over senders s of  latency_sr + max(slope_sr * bytes_sr, out_s * egress_s, in_r * ingress_r)

where out_s (in_r) is the smallest slope of a channel that leaves (enters) the host: no channel is faster
than the interface. In a ring, round k carries the channels i -> i + k, and a round lasts as long as its
slowest channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numba
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.codec import CodecCost
from wirewise.cost.link import LinkCost
from wirewise.errors import InputError

__all__ = [
    "EpochModel",
    "ExchangeCosts",
    "LinkTable",
    "break_even_bytes_per_s",
    "exposed_s",
    "ring_rounds",
    "speedup_bound",
    "wire_kernel",
]

Matrix = NDArray[np.float64]


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def wire_kernel(
    size: Matrix,
    latency: Matrix,
    slope: Matrix,
    nic_out: Matrix,
    nic_in: Matrix,
    host: NDArray[np.int64],
    ring: bool,
    out: Matrix,
) -> None:
    """Seconds until each rank has all its rows, into `out` [P]; `size` is bytes [sender, receiver]."""
    ranks = size.shape[0]
    out[:] = 0.0
    if ring:
        total = 0.0
        for step in range(1, ranks):
            slowest = 0.0
            for s in range(ranks):
                r = (s + step) % ranks
                if size[s, r] > 0.0:
                    slowest = max(slowest, latency[s, r] + slope[s, r] * size[s, r])
            total += slowest
        out[:] = total
        return
    egress = np.zeros(ranks)
    ingress = np.zeros(ranks)
    for s in range(ranks):
        for r in range(ranks):
            if host[s] != host[r]:
                egress[host[s]] += size[s, r]
                ingress[host[r]] += size[s, r]
    for s in range(ranks):
        for r in range(ranks):
            if size[s, r] > 0.0:
                busy = slope[s, r] * size[s, r]
                if host[s] != host[r]:
                    busy = max(busy, nic_out[s] * egress[host[s]], nic_in[r] * ingress[host[r]])
                out[r] = max(out[r], latency[s, r] + busy)


def ring_rounds(world_size: int) -> list[list[tuple[int, int]]]:
    """Channels (sender, receiver) of each round of a ring all-to-all."""
    return [[(s, (s + k) % world_size) for s in range(world_size)] for k in range(1, world_size)]


@dataclass(frozen=True, kw_only=True)
class LinkTable:
    """Cost of every channel of a job, and which ranks share an interface."""

    latency_s: Matrix
    """[sender, receiver]; the diagonal is ignored."""
    s_per_byte: Matrix
    """[sender, receiver]."""
    hosts: NDArray[np.int64]
    """Host number of each rank, [P], numbers below P. Channels inside a host do not use its interface."""
    ring: bool = False
    """Rounds of a ring; otherwise all channels at once."""

    @classmethod
    def of(
        cls,
        links: Mapping[tuple[int, int], LinkCost],
        world_size: int,
        *,
        hosts: Sequence[int] | None = None,
        ring: bool = False,
    ) -> LinkTable:
        """From the cost of each (sender, receiver).

        Raises:
            InputError: A channel is missing, or the hosts are not one number below `world_size` a rank.
        """
        latency, slope = np.zeros((world_size, world_size)), np.zeros((world_size, world_size))
        for s in range(world_size):
            for r in range(world_size):
                if s == r:
                    continue
                if (s, r) not in links:
                    raise InputError(
                        f"no link cost from rank {s} to rank {r}; measure all {world_size} ranks"
                    )
                latency[s, r], slope[s, r] = links[s, r].latency_s, links[s, r].s_per_byte
        host = np.arange(world_size) if hosts is None else np.asarray(hosts, dtype=np.int64)
        if host.shape != (world_size,) or (host < 0).any() or (host >= max(world_size, 1)).any():
            raise InputError(
                f"hosts is {host.tolist()}; expected {world_size} numbers from 0 to {world_size - 1}, one "
                "a rank"
            )
        return cls(latency_s=latency, s_per_byte=slope, hosts=host.astype(np.int64), ring=ring)

    @classmethod
    def uniform(
        cls, link: LinkCost, world_size: int, *, hosts: Sequence[int] | None = None, ring: bool = False
    ) -> LinkTable:
        """The same cost for every channel."""
        channels = {(s, r): link for s in range(world_size) for r in range(world_size) if s != r}
        return cls.of(channels, world_size, hosts=hosts, ring=ring)

    @property
    def world_size(self) -> int:
        """Ranks."""
        return len(self.hosts)

    @property
    def crosses(self) -> NDArray[np.bool_]:
        """Channels that leave their host, [sender, receiver]."""
        return np.not_equal(self.hosts[:, None], self.hosts[None, :])

    def nics(self) -> tuple[Matrix, Matrix]:
        """Seconds a byte of the interface of each rank's host, out [P] and in [P]."""
        slope = np.where(self.crosses, self.s_per_byte, np.inf)
        out, into = np.full(self.world_size, np.inf), np.full(self.world_size, np.inf)
        np.minimum.at(out, self.hosts, slope.min(axis=1))
        np.minimum.at(into, self.hosts, slope.min(axis=0))
        out, into = out[self.hosts], into[self.hosts]
        return np.where(np.isfinite(out), out, 0.0), np.where(np.isfinite(into), into, 0.0)

    def load(self, size: Matrix | NDArray[np.int64]) -> Matrix:
        """Bytes that compete with each channel on its slower interface, [sender, receiver].

        Regress arrival times on these bytes (not on the channel's own), and `wire_s` predicts what was
        measured.
        """
        if self.ring:
            return np.asarray(size, dtype=np.float64)
        crossing = np.where(self.crosses, size, 0).astype(np.float64)
        egress, ingress = np.zeros(self.world_size), np.zeros(self.world_size)
        np.add.at(egress, self.hosts, crossing.sum(axis=1))
        np.add.at(ingress, self.hosts, crossing.sum(axis=0))
        nic_out, nic_in = self.nics()
        out_s, in_s = nic_out * egress[self.hosts], nic_in * ingress[self.hosts]
        pair = np.where(
            out_s[:, None] >= in_s[None, :], egress[self.hosts][:, None], ingress[self.hosts][None]
        )
        return np.where(self.crosses & (size > 0), pair, size).astype(np.float64)

    def wire_s(self, size: Matrix | NDArray[np.int64]) -> Matrix:
        """Seconds until each rank has all its rows, [P], for bytes [sender, receiver]."""
        if size.shape != self.latency_s.shape:
            raise InputError(
                f"got bytes of shape {size.shape}, the links are those of {self.world_size} ranks; "
                "measure the links of this job"
            )
        nic_out, nic_in = self.nics()
        result = np.zeros(self.world_size)
        wire_kernel(
            np.ascontiguousarray(size, dtype=np.float64),
            self.latency_s,
            self.s_per_byte,
            nic_out,
            nic_in,
            self.hosts,
            self.ring,
            result,
        )
        return result


def exposed_s(wire_s: Matrix, hidden_s: Matrix | float, codec_s: Matrix | float) -> float:
    """Seconds that an exchange adds to an epoch: codec time, and wire time that no computing hides.

    Ranks meet again in the next exchange, so the slowest rank decides.
    """
    return float(np.max(codec_s + np.maximum(wire_s - hidden_s, 0.0))) if np.size(wire_s) else 0.0


@dataclass(frozen=True, kw_only=True)
class ExchangeCosts:
    """Everything measured that a planner prices an exchange with; equal on all ranks after `share`."""

    links: LinkTable
    codec: CodecCost = field(default_factory=CodecCost)
    hidden_s: Mapping[str, Matrix] = field(default_factory=dict)
    """Computing that goes on while an exchange is on the wire, [P] by exchange; missing: none."""

    def hidden(self, exchange: str) -> Matrix:
        """Hidden seconds of an exchange by rank, [P]."""
        given = self.hidden_s.get(exchange)
        return np.zeros(self.links.world_size) if given is None else np.asarray(given, dtype=np.float64)

    def share(self, rank: int, allgather: Callable[[Matrix], Sequence[Matrix]]) -> ExchangeCosts:
        """Costs that all ranks agree on, from what each one measured.

        A channel's link cost is its receiver's, hidden seconds are each rank's own, codec costs the median.

        Args:
            rank: This rank.
            allgather: Sends a float64 array and returns those of all ranks, in rank order; shapes are equal.
        """
        names, bits = sorted(self.hidden_s), self._codec_bits()
        own = np.concatenate(
            [
                self.links.latency_s[:, rank],
                self.links.s_per_byte[:, rank],
                [self.hidden(name)[rank] for name in names],
                [table.get(b, 0.0) for table in self._codec_tables() for b in bits],
            ]
        )
        gathered = np.stack([np.asarray(row, dtype=np.float64) for row in allgather(own)])
        ranks = self.links.world_size
        codec = np.median(gathered[:, 2 * ranks + len(names) :], axis=0).reshape(4, len(bits))
        tables = [dict(zip(bits, row, strict=True)) for row in codec.tolist()]
        hidden = {n: gathered[:, 2 * ranks + i].copy() for i, n in enumerate(names)}
        links = replace(
            self.links,
            latency_s=np.ascontiguousarray(gathered[:, :ranks].T),
            s_per_byte=np.ascontiguousarray(gathered[:, ranks : 2 * ranks].T),
        )
        shared = CodecCost(
            pack_s_per_value=tables[0],
            unpack_s_per_value=tables[1],
            pack_s_per_row=tables[2],
            unpack_s_per_row=tables[3],
        )
        return ExchangeCosts(links=links, codec=shared, hidden_s=hidden)

    def _codec_tables(self) -> list[dict[int, float]]:
        c = self.codec
        return [c.pack_s_per_value, c.unpack_s_per_value, c.pack_s_per_row, c.unpack_s_per_row]

    def _codec_bits(self) -> list[int]:
        return sorted({b for table in self._codec_tables() for b in table})


def speedup_bound(rho: float, ratio: float = float("inf")) -> float:
    """Largest epoch speedup of compression when a share `rho` of the epoch is spent on the wire.

    Args:
        rho: Wire time over epoch time, uncompressed, in [0, 1].
        ratio: Uncompressed over compressed bytes; infinite: the limit of any compression.
    """
    if not 0.0 <= rho <= 1.0 or ratio <= 0:
        raise InputError(f"got rho {rho} and ratio {ratio}; expected a share in [0, 1] and a ratio above 0")
    rest = (1.0 - rho) + rho / ratio
    return 1.0 / rest if rest > 0 else float("inf")


def break_even_bytes_per_s(ratio: float, pack_bytes_per_s: float, unpack_bytes_per_s: float) -> float:
    """Link rate above which compressing takes longer than it saves; codec rates are in float32 bytes."""
    return (1.0 - 1.0 / ratio) / (1.0 / pack_bytes_per_s + 1.0 / unpack_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class EpochModel:
    """Epoch time of one rank from four rates: the reference that measured speedups are held against."""

    compute_s: float
    central_s: float
    """Part of the computing that can go on while bytes are on the wire."""
    wire_bytes: float
    """Float32 bytes that the rank sends in an epoch."""
    bandwidth_bytes_per_s: float
    pack_bytes_per_s: float = float("inf")
    unpack_bytes_per_s: float = float("inf")

    def epoch_s(self, ratio: float = 1.0, *, overlap: bool = False) -> float:
        """Seconds of an epoch whose messages are `ratio` times smaller; ratio 1 sends float32, no codec."""
        wire = self.wire_bytes / self.bandwidth_bytes_per_s / ratio
        codec = 0.0
        if ratio != 1.0:
            codec = self.wire_bytes / self.pack_bytes_per_s + self.wire_bytes / self.unpack_bytes_per_s
        if overlap:
            return self.compute_s - self.central_s + max(self.central_s, wire) + codec
        return self.compute_s + wire + codec

    @property
    def wire_share(self) -> float:
        """Share of the uncompressed serial epoch that is spent on the wire."""
        return self.wire_bytes / self.bandwidth_bytes_per_s / self.epoch_s()

    def speedup(self, ratio: float, *, overlap: bool = False) -> float:
        """Uncompressed serial epoch over the compressed one."""
        return self.epoch_s() / self.epoch_s(ratio, overlap=overlap)
