"""Who may send to this host next: the receiving end decides, so that its interface never has a queue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from wirewise.errors import InputError
from wirewise.runtime.flows.shares import EqualShares, Shares

__all__ = ["CHUNK_BYTES", "ORDERS", "Grants", "TokenBucket", "shares_of"]

CHUNK_BYTES = 256 * 1024
"""At most, of what is granted or sent before the order is looked at again."""
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
"""Who goes first, the least: by iteration of a flow, when it was announced, and how many chunks went before."""
_SHARED = ("oes",)
"""Orders that give each flow a share of the interface, whether it uses it or not."""


class TokenBucket:
    """Tokens of an interface: it is busy for as long as what was let through takes.

    Args:
        rate_bytes_per_s: Bytes per second of the interface.
        chunk_bytes: Most that is let through at once.
        order: One of `ORDERS`; what is let through at once is less where it gives flows shares.

    Raises:
        InputError: A figure is not above 0.
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
        """Before which the interface is busy; `time.monotonic`."""

    def take(self, size_bytes: int, now_s: float) -> None:
        """Let bytes through; what a late process missed is made up for, but of a pause no more than some chunks."""
        saved_s = _SAVED * self.chunk_bytes / self.rate
        self.free_s = max(self.free_s, now_s - saved_s) + size_bytes / self.rate


def shares_of(order: str, bucket: TokenBucket) -> Shares:
    """Shares that an order gives flows of an interface."""
    return EqualShares(bucket.rate, _SAVED * bucket.chunk_bytes) if order in _SHARED else Shares()


@dataclass
class _Announced:
    key: tuple[int, int]
    op: int
    host: int
    left: int
    iteration: int
    arrival: int


class Grants:
    """What other hosts want to send here, and how much of it they were allowed to.

    Args:
        bucket: Bucket of the interface inwards.
        order: One of `ORDERS`.
    """

    def __init__(self, bucket: TokenBucket, order: str) -> None:
        self.bucket, self._order = bucket, ORDERS[order]
        self._shares, self._each = shares_of(order, bucket), order in _SHARED
        self._waiting: list[_Announced] = []
        self._owed: dict[int, int] = {}
        """Chunks that are owed by host; by op where each flow has its share, which must not wait for another one's."""
        self._coming: dict[int, int] = {}
        """Bytes of each flow that have not arrived."""
        self._turn = self._arrivals = 0

    def announce(self, host: int, op: int, size_bytes: int, iteration: int, now_s: float) -> None:
        """A host has a flow for this one."""
        self._arrivals += 1
        key = self._order(iteration, self._arrivals, self._turn)
        self._waiting.append(_Announced(key, op, host, size_bytes, iteration, self._arrivals))
        self._coming[op] = size_bytes
        self._shares.begin(op, now_s)

    def arrived(self, host: int, op: int, size_bytes: int, now_s: float) -> None:
        """A host sent so much of what it was allowed."""
        self._owed[op if self._each else host] -= size_bytes
        self._coming[op] -= size_bytes
        if not self._coming[op]:
            del self._coming[op]
            self._shares.end(op, now_s)

    def next(self, now_s: float) -> tuple[int, int, int] | None:
        """Host, op and bytes that may be sent next; None: nothing now."""
        if now_s < self.bucket.free_s:
            return None
        due = [flow for flow in self._able() if self._free_s(flow) <= now_s]
        flow = min(due, key=lambda flow: flow.key, default=None)
        if flow is None:
            return None
        size = self._piece(flow)
        flow.left -= size
        self._turn += 1
        flow.key = self._order(flow.iteration, flow.arrival, self._turn)
        if not flow.left:
            self._waiting.remove(flow)
        owing = flow.op if self._each else flow.host
        self._owed[owing] = self._owed.get(owing, 0) + size
        self.bucket.take(size, now_s)
        self._shares.take(flow.op, size, now_s)
        return flow.host, flow.op, size

    @property
    def when_s(self) -> float:
        """When something may be granted next; infinite: not before more arrives."""
        return max(self.bucket.free_s, min((self._free_s(flow) for flow in self._able()), default=math.inf))

    def _able(self) -> list[_Announced]:
        """Flows of those that do not owe too much."""
        most = _AHEAD * self.bucket.chunk_bytes
        return [f for f in self._waiting if self._owed.get(f.op if self._each else f.host, 0) < most]

    def _free_s(self, flow: _Announced) -> float:
        return self._shares.free_s(flow.op, self._piece(flow))

    def _piece(self, flow: _Announced) -> int:
        return min(flow.left, self.bucket.chunk_bytes)
