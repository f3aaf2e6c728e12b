"""Rates of the links between hosts while a job runs, from the kernel's counts of the job's own connections."""

from __future__ import annotations

import math
import socket
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wirewise.hosts.connections import ConnectionCounts, own_connections
from wirewise.hosts.interfaces import address_of_interface

__all__ = ["LinkFigures", "LinkReader", "own_addresses"]

_LEAST_BUSY_S, _LEAST_BYTES = 0.05, 1 << 20
"""Traffic of a window that says something about a link: the kernel counts in ticks of up to 10 ms."""
_BASELINE = 4
"""Windows whose median is the usual rate."""
_FALL, _DEVIATIONS = 0.25, 3.0
"""Fall that is beyond noise: by a quarter, and by three median deviations of the usual windows."""
_PATIENCE = 2
"""Windows after which a fallen rate is the usual one, so that it is told once."""


class LinkFigures(NamedTuple):
    """Link of this rank that fell most below its usual rate in one window; NaN without enough traffic."""

    peer: float
    """First rank of the host at the other end."""
    bytes_per_s: float
    """Bytes per second of a connection while it had bytes in flight."""
    usual_bytes_per_s: float
    limit_bytes_per_s: float
    """Rate below which it is slower than noise explains."""


UNKNOWN = LinkFigures(math.nan, math.nan, math.nan, math.nan)


def own_addresses() -> tuple[str, ...]:
    """IPv4 addresses of this host's interfaces, without loopback."""
    found = []
    for _, name in socket.if_nameindex():
        try:
            found.append(address_of_interface(name))
        except OSError:
            continue  # it has none
    return tuple(sorted(address for address in found if not address.startswith("127.")))


class _Link:
    """Rates of one link, window by window."""

    def __init__(self) -> None:
        self._usual: list[float] = []
        self._windows = self._below = 0

    def add(self, rate: float) -> tuple[float, float]:
        """Usual rate and limit to compare a window's rate with; the rate itself while the usual one is not known."""
        self._windows += 1
        if self._windows == 1:
            # Connections of the first window still find out what the link carries.
            return rate, 0.0
        if len(self._usual) < _BASELINE:
            self._usual.append(rate)
            return rate, 0.0
        usual = float(np.median(self._usual))
        spread = _DEVIATIONS * 1.4826 * float(np.median(np.abs(np.array(self._usual) / usual - 1)))
        limit = usual * max(0.0, 1 - max(_FALL, spread))
        self._below = self._below + 1 if rate < limit else 0
        if self._below == _PATIENCE:
            self._usual, self._below = [rate], 0
        return usual, limit


class LinkReader:
    """Reader of the rates at which this rank sends to other hosts.

    Args:
        addresses: IPv4 addresses of each rank's host, in rank order.
        rank: Index of this rank.
    """

    def __init__(self, addresses: Sequence[tuple[str, ...]], rank: int) -> None:
        own = set(addresses[rank])
        self._peer_of: dict[str, int] = {}
        for peer, theirs in enumerate(addresses):
            for address in theirs:
                # Addresses of bridges are the same on several hosts.
                if address not in own:
                    self._peer_of.setdefault(address, peer)
        self._links: dict[int, _Link] = defaultdict(_Link)
        self._before = self._counts()

    def read(self) -> LinkFigures:
        """Figures of the window since the last call."""
        now, before = self._counts(), self._before
        self._before = now
        sent: dict[int, float] = defaultdict(float)
        busy: dict[int, float] = defaultdict(float)
        for key, counts in now.items():
            earlier = before.get(key, ConnectionCounts())
            peer = self._peer_of[key[0]]
            sent[peer] += counts.acknowledged_bytes - earlier.acknowledged_bytes
            # A late rank that does not read is no slow link.
            busy[peer] += (counts.busy_s - counts.receiver_limited_s) - (
                earlier.busy_s - earlier.receiver_limited_s
            )
        found = [
            LinkFigures(float(peer), rate, *self._links[peer].add(rate))
            for peer in sent
            if sent[peer] >= _LEAST_BYTES and busy[peer] >= _LEAST_BUSY_S
            for rate in [sent[peer] / busy[peer]]
        ]
        return min(found, key=lambda one: one.bytes_per_s / one.usual_bytes_per_s, default=UNKNOWN)

    def _counts(self) -> dict[tuple[str, int, int], ConnectionCounts]:
        if not self._peer_of:
            return {}
        return {key: counts for key, counts in own_connections() if key[0] in self._peer_of}
