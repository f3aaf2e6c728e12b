"""Bandwidth sharing of concurrent messages on an interface, estimated from their times.

TCP shares a link by the windows of its connections, not in equal parts: of two messages that leave a host together,
one may have arrived when most of the other is still to be sent. The times of the messages reveal the fractions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.trace.match import Match

__all__ = ["Traffic", "message_weights"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

_ROUNDS = 12
"""Few, so that weights stay near 1 where little tells of them."""
_MOST = 16.0


class Traffic:
    """Concurrent messages on the interfaces of hosts, each from the arrival of both ranks to its delivery.

    Args:
        messages: Messages on aligned clocks, at least one.
        hosts: Host of each rank, [ranks].
    """

    def __init__(self, messages: Sequence[Match], hosts: Sequence[int]) -> None:
        of_rank, count = np.asarray(hosts, dtype=np.int64), max(hosts) + 1
        source, target = of_rank[np.array([one.ranks for one in messages])].T
        inside = 2 * count + source
        # Out of hosts, into them, and inside.
        self.ways = np.where(source == target, (inside, inside), (source, count + target))
        self.begin = np.array([one.start_s for one in messages])
        self.until = np.maximum([one.end_s for one in messages], self.begin)
        times = np.unique(np.concatenate([self.begin, self.until]))
        self._first, self._last = np.searchsorted(times, self.begin), np.searchsorted(times, self.until)
        self._shape = (3 * count, len(times))
        # Each message with each piece of time between two times at which something changes.
        pieces = self._last - self._first
        self._message = np.repeat(np.arange(len(messages)), pieces)
        before = np.repeat(np.cumsum(pieces) - pieces - self._first, pieces)
        self._piece = np.arange(len(self._message)) - before
        self._seconds = np.diff(times)[self._piece]

    def alone_s(self, weight: Vector | None = None) -> Vector:
        """Time of each message at full bandwidth: the integral of its bandwidth fraction, in seconds, [k].

        Args:
            weight: Weight of each message on its more loaded interface, [k]; equal by default.
        """
        own = np.ones(len(self.begin)) if weight is None else weight
        full = self._load(own).max(axis=0)
        share = own[self._message] / np.maximum(full, own[self._message])
        seconds = np.zeros(len(own))
        np.add.at(seconds, self._message, share * self._seconds)
        return seconds

    def groups(self) -> Ints:
        """Index of the busy period of each message on its bottleneck interface, [k]."""
        crowd = [
            np.bincount(self._message, load * self._seconds, minlength=len(self.begin))
            for load in self._load(np.ones(len(self.begin)))
        ]
        way = np.where(crowd[0] >= crowd[1], *self.ways)
        group, count = np.zeros(len(way), dtype=np.int64), 0
        last, until = -1, -np.inf
        for place in np.lexsort((self.begin, way)).tolist():
            if way[place] != last or self.begin[place] >= until:
                last, until, count = int(way[place]), -np.inf, count + 1
            until = max(until, float(self.until[place]))
            group[place] = count - 1
        return group

    def _load(self, weight: Vector) -> Vector:
        """Weight on both interfaces of each message in each of its pieces of time, [2, pieces]."""
        change = np.zeros(self._shape)
        for way, chosen in zip(self.ways, (slice(None), self.ways[0] != self.ways[1]), strict=True):
            np.add.at(change, (way[chosen], self._first[chosen]), weight[chosen])
            np.add.at(change, (way[chosen], self._last[chosen]), -weight[chosen])
        load: Vector = np.cumsum(change, axis=1)[self.ways[:, self._message], self._piece]
        return load


def message_weights(messages: Sequence[Match], hosts: Sequence[int]) -> list[float]:
    """Estimate bandwidth weights of messages that explain their delivery times; 1 where undetermined.

    Seconds alone should be proportional to the bytes of the messages of a group (`Traffic.groups`); a message with
    more seconds than its bytes explain had smaller fractions. Iterative proportional fitting, geometric mean of each
    group 1.

    Args:
        messages: Messages on aligned clocks.
        hosts: Host of each rank, [ranks].
    """
    if not messages:
        return []
    traffic = Traffic(messages, hosts)
    group, size = traffic.groups(), np.maximum([float(one.size_bytes) for one in messages], 1.0)
    weight = np.ones(len(size))
    wanted = size * (np.bincount(group, traffic.alone_s()) / np.bincount(group, size))[group]
    for _ in range(_ROUNDS):
        known = (wanted > 0) & ((alone := traffic.alone_s(weight)) > 0)
        weight = weight * np.divide(wanted, alone, out=np.ones(len(size)), where=known)
        middle = np.exp(np.bincount(group, np.log(weight)) / np.bincount(group))
        weight = np.clip(weight / middle[group], 1.0 / _MOST, _MOST)
    found: list[float] = weight.tolist()
    return found
