"""Who may send to this host next: the receiving end decides, so that its interface never has a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wirewise.errors import InputError

__all__ = ["CHUNK_BYTES", "ORDERS", "Bucket", "Grants"]

CHUNK_BYTES = 256 * 1024
"""At most, of what is granted or sent before the order is looked at again."""
_CHUNK_S = 0.01
"""A chunk takes no longer than this, so that slow interfaces change over as quickly as fast ones."""
_LEAST_BYTES = 16 * 1024
_SAVED = 4
"""Chunks that a pause saves at most."""
_AHEAD = 2
"""Chunks that each sender may owe: one under way while the word for the next one travels."""

ORDERS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "iter": lambda iteration, arrival, turn: (iteration, turn),
    "fifo": lambda iteration, arrival, turn: (arrival, turn),
    "maxmin": lambda iteration, arrival, turn: (0, turn),
}
"""Who goes first, the least: by iteration of a flow, when it was announced, and how many chunks went before."""


class Bucket:
    """Tokens of an interface: it is busy for as long as what was let through takes.

    Args:
        rate_bytes_per_s: Of the interface.
        chunk_bytes: Most that is let through at once.

    Raises:
        InputError: A figure is not above 0.
    """

    def __init__(self, rate_bytes_per_s: float, chunk_bytes: int = CHUNK_BYTES) -> None:
        if not rate_bytes_per_s > 0 or chunk_bytes < 1:
            raise InputError(
                f"got {rate_bytes_per_s} bytes a second and chunks of {chunk_bytes}; expected figures above 0"
            )
        self.rate = rate_bytes_per_s
        self.chunk_bytes = min(chunk_bytes, max(int(_CHUNK_S * rate_bytes_per_s), _LEAST_BYTES))
        self.free_s = 0.0
        """Before which the interface is busy; `time.monotonic`."""

    def take(self, size_bytes: int, now_s: float) -> None:
        """Let bytes through; what a late process missed is made up for, but of a pause no more than some chunks."""
        saved_s = _SAVED * self.chunk_bytes / self.rate
        self.free_s = max(self.free_s, now_s - saved_s) + size_bytes / self.rate


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
        bucket: Of the interface inwards.
        order: One of `ORDERS`.
    """

    def __init__(self, bucket: Bucket, order: str) -> None:
        self.bucket, self._order = bucket, ORDERS[order]
        self._waiting: list[_Announced] = []
        self._owed: dict[int, int] = {}
        self._turn = self._arrivals = 0

    def announce(self, host: int, op: int, size_bytes: int, iteration: int) -> None:
        """A host has a flow for this one."""
        self._arrivals += 1
        key = self._order(iteration, self._arrivals, self._turn)
        self._waiting.append(_Announced(key, op, host, size_bytes, iteration, self._arrivals))

    def arrived(self, host: int, size_bytes: int) -> None:
        """A host sent so much of what it was allowed."""
        self._owed[host] -= size_bytes

    def next(self, now_s: float) -> tuple[int, int, int] | None:
        """Host, op and bytes that may be sent next; None: nothing now."""
        if now_s < self.bucket.free_s:
            return None
        flow = self._first()
        if flow is None:
            return None
        size = min(flow.left, self.bucket.chunk_bytes)
        flow.left -= size
        self._turn += 1
        flow.key = self._order(flow.iteration, flow.arrival, self._turn)
        if not flow.left:
            self._waiting.remove(flow)
        self._owed[flow.host] = self._owed.get(flow.host, 0) + size
        self.bucket.take(size, now_s)
        return flow.host, flow.op, size

    @property
    def when_s(self) -> float:
        """When something may be granted next; infinite: not before more arrives."""
        return self.bucket.free_s if self._first() is not None else float("inf")

    def _first(self) -> _Announced | None:
        """Of the hosts that do not owe too much, the flow that goes first."""
        most = _AHEAD * self.bucket.chunk_bytes
        able = [flow for flow in self._waiting if self._owed.get(flow.host, 0) < most]
        return min(able, key=lambda flow: flow.key, default=None)
