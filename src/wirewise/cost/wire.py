"""Duration of one exchange of halo messages.

All ranks send at once, or in the rounds of a ring. Sent at once, a channel takes at least its own time, and at least
the time that the interfaces at its ends need for everything that they carry: channels of a host share its interface.
Rank r therefore has its rows after

    wire_r = max over senders s of  latency_sr + max(slope_sr * bytes_sr, out_s * egress_s, in_r * ingress_r)

where out_s (in_r) is what a byte takes on the interface out of (into) the host. In a ring, round k carries the
channels i -> i + k, and a round lasts as long as its slowest channel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit

__all__ = ["Channels", "competing_bytes", "exchange_s", "wire_kernel"]

Matrix = NDArray[np.float64]


class Channels(NamedTuple):
    """Link table in arrays for the compiled exchange, for P ranks."""

    latency_s: Matrix
    """Latency in seconds, [sender, receiver]; the diagonal is ignored."""
    s_per_byte: Matrix
    """Seconds per byte, [sender, receiver]."""
    out_s: Matrix
    """Seconds per byte on the interface out of each rank's host, [P]."""
    in_s: Matrix
    """Seconds per byte on the interface into each rank's host, [P]."""
    host: NDArray[np.int64]
    """Number below P of each rank's host, [P]. Channels inside a host do not use its interface."""
    ring: bool
    """Whether messages are sent in the rounds of a ring; otherwise all channels at once."""

    @property
    def crosses_hosts(self) -> NDArray[np.bool_]:
        """Channels between different hosts, [sender, receiver]."""
        return np.not_equal(self.host[:, None], self.host[None, :])


@njit()
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
    """Write the seconds until each rank has all its rows to `out` [P]; `size` is bytes [sender, receiver]."""
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


def exchange_s(size: Matrix | NDArray[np.int64], channels: Channels) -> Matrix:
    """Seconds until each rank has all its rows, [P], for bytes [sender, receiver]."""
    result = np.zeros(len(channels.host))
    wire_kernel(np.ascontiguousarray(size, dtype=np.float64), *channels, result)
    return result


def competing_bytes(size: Matrix | NDArray[np.int64], channels: Channels) -> Matrix:
    """Bytes that compete with each channel on its slower interface, [sender, receiver]."""
    if channels.ring:
        return np.asarray(size, dtype=np.float64)
    host, crosses = channels.host, channels.crosses_hosts
    crossing = np.where(crosses, size, 0).astype(np.float64)
    egress, ingress = np.zeros(len(host)), np.zeros(len(host))
    np.add.at(egress, host, crossing.sum(axis=1))
    np.add.at(ingress, host, crossing.sum(axis=0))
    out_s, in_s = channels.out_s * egress[host], channels.in_s * ingress[host]
    pair = np.where(out_s[:, None] >= in_s[None, :], egress[host][:, None], ingress[host][None])
    return np.where(crosses & (size > 0), pair, size).astype(np.float64)
