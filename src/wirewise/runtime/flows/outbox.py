"""What this host sends: of the chunks that receivers granted, the next one of the flow that goes first."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from wirewise.runtime.flows.grants import ORDERS, TokenBucket, shares_of

__all__ = ["Outbox"]


@dataclass
class _Flow:
    op: int
    host: int
    left: int
    iteration: int
    arrival: int
    granted: int = 0
    key: tuple[int, int] = (0, 0)


class Outbox:
    """Flows to other hosts.

    Args:
        bucket: Bucket of the interface outwards.
        order: One of `ORDERS`.
    """

    def __init__(self, bucket: TokenBucket, order: str) -> None:
        self.bucket, self._order = bucket, ORDERS[order]
        self._shares = shares_of(order, bucket)
        self._flows: dict[int, _Flow] = {}
        self._turn = self._arrivals = 0

    @property
    def empty(self) -> bool:
        """Whether every flow has gone."""
        return not self._flows

    def add(self, host: int, op: int, size_bytes: int, iteration: int, now_s: float) -> None:
        """A flow is ready."""
        self._arrivals += 1
        self._flows[op] = _Flow(op, host, size_bytes, iteration, self._arrivals)
        self._shares.begin(op, now_s)

    def grant(self, op: int, size_bytes: int) -> None:
        """The receiver allows more of a flow, which goes behind its equals."""
        flow = self._flows[op]
        flow.granted += size_bytes
        flow.key = self._order(flow.iteration, flow.arrival, self._turn)

    def hosts(self, now_s: float) -> set[int]:
        """To which something may go."""
        return {flow.host for flow in self._due(now_s)}

    def when_s(self, now_s: float) -> float:
        """When more may go than now; infinite: not before a grant comes."""
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
        flow.left -= size
        self._turn += 1
        flow.key = self._order(flow.iteration, flow.arrival, self._turn)
        self._shares.take(flow.op, size, now_s)
        if not flow.left:
            del self._flows[flow.op]
            self._shares.end(flow.op, now_s)
        return flow.host, flow.op, size

    def _due(self, now_s: float) -> Iterator[_Flow]:
        if now_s >= self.bucket.free_s:
            yield from (f for f in self._flows.values() if f.granted and self._free_s(f) <= now_s)

    def _free_s(self, flow: _Flow) -> float:
        return self._shares.free_s(flow.op, self._piece(flow))

    def _piece(self, flow: _Flow) -> int:
        return min(flow.granted, self.bucket.chunk_bytes)
