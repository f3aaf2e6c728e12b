"""Sends flows in chunks, always the next chunk of the flow that goes first; no rate needs the kernel's help.

A host hands its interface no more than the interface carries (a token bucket), so that what waits, waits here, where
the order is decided. A destination whose connection takes nothing more, because its own interface is busy, is passed
over. Where several hosts send to one, TCP shares its interface among them.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from wirewise.errors import InputError, PeerError
from wirewise.runtime.flows.meeting import FLOWS, WORDS, Peers

__all__ = ["CHUNK_BYTES", "ORDERS", "Carrier"]

CHUNK_BYTES = 256 * 1024
_UNSENT_BYTES = 64 * 1024
"""That may wait in the kernel for a connection: they can no longer be overtaken."""
_HEADER = struct.Struct("!iI")
_BUFFER_BYTES = 1 << 20
_IDLE_S = 1.0

ORDERS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "iter": lambda iteration, arrival, turn: (iteration, turn),
    "fifo": lambda iteration, arrival, turn: (arrival, turn),
    "maxmin": lambda iteration, arrival, turn: (0, turn),
}
"""Who goes first, the least: by iteration of a flow, when it became ready, and how many chunks were sent before."""


class _Waiting(NamedTuple):
    """A flow with bytes left, in the order in which flows go."""

    key: tuple[int, int]
    op: int
    left: int
    iteration: int
    arrival: int


class _Stream:
    """Frames on one connection: number of an op and a length, then so many bytes."""

    def __init__(self) -> None:
        self._head, self._op, self._left = b"", -1, 0

    def walk(self, data: memoryview, heard: Callable[[int, int], None]) -> None:
        """Report (op, bytes) of what arrived; a frame without bytes is reported once."""
        place = 0
        while place < len(data):
            if self._left:
                taken = min(self._left, len(data) - place)
                self._left -= taken
                place += taken
                heard(self._op, taken)
                continue
            taken = min(_HEADER.size - len(self._head), len(data) - place)
            self._head += bytes(data[place : place + taken])
            place += taken
            if len(self._head) == _HEADER.size:
                self._op, self._left = _HEADER.unpack(self._head)
                self._head = b""
                if not self._left:
                    heard(self._op, 0)


class Carrier:
    """What one host sends and receives.

    Args:
        peers: Its connections.
        rate_bytes_per_s: That it sends at most.
        order: One of `ORDERS`.
        chunk_bytes: Sent before the order is looked at again.

    Raises:
        InputError: Unknown order, or a rate or chunk that is not above 0.
    """

    def __init__(
        self, peers: Peers, rate_bytes_per_s: float, *, order: str = "iter", chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        if order not in ORDERS or not rate_bytes_per_s > 0 or chunk_bytes < 1:
            raise InputError(
                f"got order {order!r}, {rate_bytes_per_s} bytes a second and chunks of {chunk_bytes}; expected one of "
                f"{', '.join(ORDERS)}, and figures above 0"
            )
        self.peers, self.rate, self.chunk_bytes = peers, rate_bytes_per_s, chunk_bytes
        self.arrived: Callable[[int, int], None] = lambda op, size: None
        """Called with (op, bytes) of every piece of a flow."""
        self.told: Callable[[int], None] = lambda op: None
        """Called with each op that another host said has ended."""
        self._order = ORDERS[order]
        self._queues: dict[int, list[_Waiting]] = {
            host: [] for host, purpose in peers.out if purpose == FLOWS
        }
        self._rest: dict[int, memoryview] = {}
        """What is left of a frame that a connection took only a part of, by host."""
        self._zeros = memoryview(bytes(_HEADER.size + chunk_bytes))
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._turn = self._arrivals = 0
        self._free_s = 0.0
        """Before which the interface is busy with what was sent."""
        self._selector = selectors.DefaultSelector()
        for (host, purpose), connection in peers.into.items():
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, (host, purpose, _Stream()))
        for host in self._queues:
            connection = peers.out[host, FLOWS]
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    def close(self) -> None:
        """Let go of the connections, which stay open."""
        self._selector.close()
        for connection in (*self.peers.out.values(), *self.peers.into.values()):
            connection.settimeout(self.peers.timeout_s)

    @property
    def sending(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._rest) or any(self._queues.values())

    def send(self, host: int, op: int, size_bytes: int, iteration: int) -> None:
        """Let a flow to a host begin."""
        self._arrivals += 1
        key = self._order(iteration, self._arrivals, self._turn)
        heapq.heappush(self._queues[host], _Waiting(key, op, size_bytes, iteration, self._arrivals))

    def tell(self, host: int, op: int) -> None:
        """Tell a host that an op has ended.

        Raises:
            PeerError: The host is gone.
        """
        try:
            self.peers.out[host, WORDS].sendall(_HEADER.pack(op, 0))
        except OSError as error:
            raise PeerError(
                f"host {host} is gone ({error}); see its log, then start the job again"
            ) from error

    def step(self, until_s: float) -> bool:
        """Send what may go now and take in what has come; waits for one of them at most until a time.

        Args:
            until_s: As `time.monotonic` gives it.

        Returns:
            Whether anything moved.

        Raises:
            PeerError: A host closed a connection.
        """
        now = time.monotonic()
        wanted = set(self._rest) | {host for host, queue in self._queues.items() if queue}
        if wanted and now < self._free_s:
            until_s, wanted = min(until_s, self._free_s), set()
        watched = [self.peers.out[host, FLOWS] for host in wanted]
        for host, connection in zip(wanted, watched, strict=True):
            self._selector.register(connection, selectors.EVENT_WRITE, (host, FLOWS, None))
        try:
            events = self._selector.select(max(min(until_s - now, _IDLE_S), 0.0))
        finally:
            for connection in watched:
                self._selector.unregister(connection)
        free = []
        for key, _ in events:
            host, purpose, stream = key.data
            if stream is None:
                free.append(host)
            else:
                self._take(host, purpose, stream, key.fileobj)
        if free:
            self._give(free)
        return bool(events)

    def _take(self, host: int, purpose: int, stream: _Stream, connection: object) -> None:
        assert isinstance(connection, socket.socket)
        try:
            count = connection.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerError(
                f"host {host} is gone ({error}); see its log, then start the job again"
            ) from error
        if not count:
            raise PeerError(f"host {host} closed its connection; see its log, then start the job again")
        heard = self.arrived if purpose == FLOWS else lambda op, size: self.told(op)
        stream.walk(self._buffer[:count], heard)

    def _give(self, free: list[int]) -> None:
        """One chunk, to the host whose first flow goes first among those that take more."""
        started = [host for host in free if host in self._rest]
        host = started[0] if started else min(free, key=lambda h: self._queues[h][0].key)
        frame = self._rest.pop(host) if started else self._frame(host)
        try:
            count = self.peers.out[host, FLOWS].send(frame)
        except BlockingIOError:
            count = 0
        except OSError as error:
            raise PeerError(
                f"host {host} is gone ({error}); see its log, then start the job again"
            ) from error
        if count < len(frame):
            self._rest[host] = frame[count:]
        self._free_s = max(self._free_s, time.monotonic() - self.chunk_bytes / self.rate) + count / self.rate

    def _frame(self, host: int) -> memoryview:
        """The next chunk of the first flow to a host; the flow goes behind its equals."""
        flow = heapq.heappop(self._queues[host])
        size = min(flow.left, self.chunk_bytes)
        self._turn += 1
        if flow.left > size:
            key = self._order(flow.iteration, flow.arrival, self._turn)
            heapq.heappush(self._queues[host], flow._replace(key=key, left=flow.left - size))
        frame = bytearray(self._zeros[: _HEADER.size + size])
        _HEADER.pack_into(frame, 0, flow.op, size)
        return memoryview(frame)
