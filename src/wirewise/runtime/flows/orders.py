"""Order and rate of flows, at both of their ends.

The receiving end grants chunks of announced flows, so that its interface never has a queue; the sending end sends
granted chunks at the rate of its interface. Both follow one order of flows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from wirewise.errors import InputError

__all__ = [
    "CHUNK_BYTES",
    "ORDERS",
    "BandwidthShares",
    "EqualShares",
    "GrantLedger",
    "SendQueue",
    "TokenBucket",
]

CHUNK_BYTES = 256 * 1024
"""Maximum bytes granted or sent before the order is decided again."""
_CHUNK_S = 0.01
"""A chunk takes no longer than this, so that slow interfaces change over as quickly as fast ones."""
_SHARE_S = 0.004
"""Longest chunk where flows have shares: a chunk arrives after its flow's share has let it through."""
_LEAST_BYTES = 16 * 1024
_SAVED = 4
"""Chunks that a pause saves at most."""
_AHEAD = 2
"""Chunks that each sender may owe: one under way while the word for the next one travels."""

ORDERS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "iter": lambda iteration, arrival, turn: (iteration, turn),
    "fifo": lambda iteration, arrival, turn: (arrival, turn),
    "maxmin": lambda iteration, arrival, turn: (0, turn),
    "oes": lambda iteration, arrival, turn: (0, turn),
}
"""Sort keys of flows, the smallest first: by the flow's iteration, the time of its announcement, and the number of
chunks already sent."""
_SHARED = ("oes",)
"""Orders that give each flow a share of the interface, whether it uses it or not."""


class TokenBucket:
    """Token bucket of an interface, which is busy for the transmission time of the bytes let through.

    Args:
        rate_bytes_per_s: Rate of the interface, in bytes per second.
        chunk_bytes: Maximum burst, in bytes.
        order: One of `ORDERS`; bursts are smaller if it gives flows equal shares.

    Raises:
        InputError: A rate or size is not positive.
    """

    def __init__(self, rate_bytes_per_s: float, chunk_bytes: int = CHUNK_BYTES, order: str = "iter") -> None:
        if not rate_bytes_per_s > 0 or chunk_bytes < 1:
            raise InputError(
                f"got {rate_bytes_per_s} bytes a second and chunks of {chunk_bytes}; expected figures above 0"
            )
        self.rate = rate_bytes_per_s
        chunk_s = _SHARE_S if order in _SHARED else _CHUNK_S
        self.chunk_bytes = min(chunk_bytes, max(int(chunk_s * rate_bytes_per_s), _LEAST_BYTES))
        self.free_s = 0.0
        """Time before which the interface is busy; `time.monotonic`."""

    def take(self, size_bytes: int, now_s: float) -> None:
        """Let bytes through; time lost by a late process is made up for, but of a pause at most some chunks."""
        saved_s = _SAVED * self.chunk_bytes / self.rate
        self.free_s = max(self.free_s, now_s - saved_s) + size_bytes / self.rate


class BandwidthShares:
    """Base class without shares: a flow may use the whole interface."""

    def begin(self, op: int, now_s: float) -> None:
        """Handle a flow that becomes ready."""

    def end(self, op: int, now_s: float) -> None:
        """Handle a flow that has ended."""

    def take(self, op: int, size_bytes: int, now_s: float) -> None:
        """Account for a piece of a flow that was sent."""

    def free_s(self, op: int, size_bytes: int) -> float:
        """Earliest time (`time.monotonic`) at which a flow's share has room for a piece, if no flow starts or ends."""
        return 0.0


class EqualShares(BandwidthShares):
    """Equal shares: each of n ready flows has 1 / n of the rate, and unused rate is lost.

    This is the degree split of Luo, Bao, Wu, INFOCOM 2022. A piece is sent at the end of its transmission time at the
    flow's share, so that a flow ends when its last byte would.

    Args:
        rate_bytes_per_s: Rate of the interface, in bytes per second.
        saved_bytes: Maximum bytes of its share that a late flow makes up for.
    """

    def __init__(self, rate_bytes_per_s: float, saved_bytes: int) -> None:
        self._rate, self._saved_bytes = rate_bytes_per_s, saved_bytes
        self._offered, self._since_s = 0.0, 0.0
        """Bytes that a flow which is always ready could have let through, and until when that is counted."""
        self._passed: dict[int, float] = {}
        """Place of each ready flow in what was offered."""

    def begin(self, op: int, now_s: float) -> None:
        """Handle a flow that becomes ready: the others' shares shrink."""
        self._advance(now_s)
        self._passed[op] = self._offered

    def end(self, op: int, now_s: float) -> None:
        """Handle a flow that has ended: the others' shares grow."""
        self._advance(now_s)
        del self._passed[op]

    def take(self, op: int, size_bytes: int, now_s: float) -> None:
        """Account for a piece of a flow that was sent."""
        self._advance(now_s)
        self._passed[op] = max(self._passed[op], self._offered - self._saved_bytes) + size_bytes

    def free_s(self, op: int, size_bytes: int) -> float:
        """Earliest time at which the flow has room for a piece, as in `BandwidthShares.free_s`."""
        missing = self._passed[op] + size_bytes - self._offered
        return self._since_s + missing * len(self._passed) / self._rate

    def _advance(self, now_s: float) -> None:
        if self._passed:
            self._offered += (now_s - self._since_s) * self._rate / len(self._passed)
        self._since_s = now_s


@dataclass
class _Flow:
    op: int
    host: int
    left: int
    iteration: int
    arrival: int
    key: tuple[int, int] = (0, 0)
    granted: int = 0
    """Bytes that the receiver allows and that have not gone; used at the sending end."""


class _End:
    """State of both ends of flows: an interface, an order, and the shares that the order gives flows.

    Args:
        bucket: Bucket of the interface, inwards or outwards.
        order: One of `ORDERS`.
    """

    def __init__(self, bucket: TokenBucket, order: str) -> None:
        self.bucket, self._order, self._each = bucket, ORDERS[order], order in _SHARED
        self._shares = (
            EqualShares(bucket.rate, _SAVED * bucket.chunk_bytes) if self._each else BandwidthShares()
        )
        self._turn = self._arrivals = 0

    def _came(self, host: int, op: int, size_bytes: int, iteration: int, now_s: float) -> _Flow:
        self._arrivals += 1
        self._shares.begin(op, now_s)
        return _Flow(op, host, size_bytes, iteration, self._arrivals)

    def _sort_in(self, flow: _Flow) -> None:
        """Put a flow behind those that the order holds equal to it."""
        flow.key = self._order(flow.iteration, flow.arrival, self._turn)

    def _pass(self, flow: _Flow, size_bytes: int, now_s: float) -> None:
        flow.left -= size_bytes
        self._turn += 1
        self._sort_in(flow)
        self._shares.take(flow.op, size_bytes, now_s)

    def _piece(self, flow: _Flow) -> int:
        return min(flow.left, self.bucket.chunk_bytes)

    def _free_s(self, flow: _Flow) -> float:
        return self._shares.free_s(flow.op, self._piece(flow))


class GrantLedger(_End):
    """Announced flows of other hosts to this one, and bytes granted to them."""

    def __init__(self, bucket: TokenBucket, order: str) -> None:
        super().__init__(bucket, order)
        self._waiting: list[_Flow] = []
        self._owed: dict[int, int] = {}
        """Chunks that are owed by host; by op where each flow has its share, which must not wait for another one's."""
        self._coming: dict[int, int] = {}
        """Bytes of each flow that have not arrived."""

    def announce(self, host: int, op: int, size_bytes: int, iteration: int, now_s: float) -> None:
        """Register an announced flow from a host."""
        flow = self._came(host, op, size_bytes, iteration, now_s)
        self._sort_in(flow)
        self._waiting.append(flow)
        self._coming[op] = size_bytes

    def arrived(self, host: int, op: int, size_bytes: int, now_s: float) -> None:
        """Account for received bytes of a granted flow."""
        self._owed[op if self._each else host] -= size_bytes
        self._coming[op] -= size_bytes
        if not self._coming[op]:
            del self._coming[op]
            self._shares.end(op, now_s)

    def next(self, now_s: float) -> tuple[int, int, int] | None:
        """Next grant: host, op and bytes. None if nothing can be granted now."""
        if now_s < self.bucket.free_s:
            return None
        due = [flow for flow in self._able() if self._free_s(flow) <= now_s]
        flow = min(due, key=lambda flow: flow.key, default=None)
        if flow is None:
            return None
        size = self._piece(flow)
        self._pass(flow, size, now_s)
        if not flow.left:
            self._waiting.remove(flow)
        owing = flow.op if self._each else flow.host
        self._owed[owing] = self._owed.get(owing, 0) + size
        self.bucket.take(size, now_s)
        return flow.host, flow.op, size

    @property
    def when_s(self) -> float:
        """Time of the next possible grant; infinite if it depends on further arrivals."""
        return max(self.bucket.free_s, min((self._free_s(flow) for flow in self._able()), default=math.inf))

    def _able(self) -> list[_Flow]:
        """Flows of those that do not owe too much."""
        most = _AHEAD * self.bucket.chunk_bytes
        return [f for f in self._waiting if self._owed.get(f.op if self._each else f.host, 0) < most]


class SendQueue(_End):
    """Queue of flows to other hosts; sends the next granted chunk of the flow with the highest priority."""

    def __init__(self, bucket: TokenBucket, order: str) -> None:
        super().__init__(bucket, order)
        self._flows: dict[int, _Flow] = {}

    @property
    def empty(self) -> bool:
        """Whether every flow has been sent."""
        return not self._flows

    def add(self, host: int, op: int, size_bytes: int, iteration: int, now_s: float) -> None:
        """Add a flow that is ready."""
        self._flows[op] = self._came(host, op, size_bytes, iteration, now_s)

    def grant(self, op: int, size_bytes: int) -> None:
        """Add bytes granted to a flow, which moves behind flows of equal priority."""
        flow = self._flows[op]
        flow.granted += size_bytes
        self._sort_in(flow)

    def hosts(self, now_s: float) -> set[int]:
        """Hosts to which a chunk may be sent."""
        return {flow.host for flow in self._due(now_s)}

    def when_s(self, now_s: float) -> float:
        """Time at which more can be sent; infinite if it depends on further grants."""
        times = (max(self.bucket.free_s, self._free_s(flow)) for flow in self._flows.values() if flow.granted)
        return min((time_s for time_s in times if time_s > now_s), default=math.inf)

    def next(self, hosts: Collection[int], now_s: float) -> tuple[int, int, int] | None:
        """Host, op and bytes of the next chunk to one of some hosts."""
        able = (flow for flow in self._due(now_s) if flow.host in hosts)
        flow = min(able, key=lambda flow: flow.key, default=None)
        if flow is None:
            return None
        size = self._piece(flow)
        flow.granted -= size
        self._pass(flow, size, now_s)
        if not flow.left:
            del self._flows[flow.op]
            self._shares.end(flow.op, now_s)
        return flow.host, flow.op, size

    def _due(self, now_s: float) -> Iterator[_Flow]:
        if now_s >= self.bucket.free_s:
            yield from (f for f in self._flows.values() if f.granted and self._free_s(f) <= now_s)

    def _piece(self, flow: _Flow) -> int:
        return min(flow.granted, self.bucket.chunk_bytes)
