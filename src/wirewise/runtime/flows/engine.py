"""Engine that sends flows in chunks, always the next chunk of the first flow by priority; needs no kernel shaping.

A flow is announced to its receiver, which grants chunks of announced flows at the rate of its interface. A sender
sends granted chunks at the rate of its interface. Queues are therefore at the ends, where the order is decided, and
not in the network.

This is the engine of flows between tasks; that of collectives, `runtime.collective.engine`, sends the chunks of a
program in the program's order, as soon as they can go, and has neither grants nor rates.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable

from wirewise.errors import InputError, PeerError
from wirewise.runtime.flows.meeting import FLOWS, WORDS, Connections
from wirewise.runtime.flows.orders import CHUNK_BYTES, ORDERS, GrantLedger, SendQueue, TokenBucket

__all__ = ["FlowEngine"]

_UNSENT_BYTES = 64 * 1024
"""Bytes that may wait in the kernel for a connection: they can no longer be overtaken."""
_HEADER = struct.Struct("!ii")
"""Op and bytes that follow."""
_WORD = struct.Struct("!iiqi")
"""Frame: kind, op, bytes, iteration."""
_ENDED, _ANNOUNCED, _GRANTED = range(3)
_BUFFER_BYTES = 1 << 20
_IDLE_S = 1.0


class _Frames:
    """Pieces of flows on one connection."""

    def __init__(self) -> None:
        self._head, self._op, self._left = b"", -1, 0

    def walk(self, data: memoryview, on_bytes: Callable[[int, int], None]) -> None:
        """Report (op, bytes) of what arrived."""
        place = 0
        while place < len(data):
            if self._left:
                taken = min(self._left, len(data) - place)
                self._left -= taken
                on_bytes(self._op, taken)
            else:
                taken = min(_HEADER.size - len(self._head), len(data) - place)
                self._head += bytes(data[place : place + taken])
                if len(self._head) == _HEADER.size:
                    self._op, self._left = _HEADER.unpack(self._head)
                    self._head = b""
            place += taken


class FlowEngine:
    """Sends and receives of one host.

    Args:
        peers: Connections to the other hosts.
        out_bytes_per_s: Maximum send rate, in bytes per second.
        in_bytes_per_s: Maximum total receive rate, in bytes per second.
        order: One of `ORDERS`.
        chunk_bytes: Maximum bytes sent between two decisions on the order.

    Raises:
        InputError: The order is unknown, or a rate or chunk size is not positive.
    """

    def __init__(
        self,
        peers: Connections,
        out_bytes_per_s: float,
        in_bytes_per_s: float,
        *,
        order: str = "iter",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if order not in ORDERS:
            raise InputError(f"chunks cannot follow order {order!r}; expected one of: {', '.join(ORDERS)}")
        self.peers = peers
        self.arrived: Callable[[int, int], None] = lambda op, size: None
        """Called with (op, bytes) of every piece of a flow."""
        self.on_op_ended: Callable[[int], None] = lambda op: None
        """Called with each op that another host said has ended."""
        self._outbox = SendQueue(TokenBucket(out_bytes_per_s, chunk_bytes, order), order)
        self._grants = GrantLedger(TokenBucket(in_bytes_per_s, chunk_bytes, order), order)
        self._rest: dict[int, memoryview] = {}
        """Rest of a frame that a connection took only a part of, by host."""
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._words: dict[int, bytes] = {}
        """Beginning of a word, by host."""
        self._selector = selectors.DefaultSelector()
        self._prepare()

    def close(self) -> None:
        """Release the connections, which stay open."""
        self._selector.close()
        for connection in (*self.peers.out.values(), *self.peers.into.values()):
            connection.settimeout(self.peers.timeout_s)

    @property
    def sending(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._rest) or not self._outbox.empty

    def send(self, host: int, op: int, size_bytes: int, iteration: int) -> None:
        """Start a flow of at least one byte to a host.

        Raises:
            PeerError: The host is gone.
        """
        self._outbox.add(host, op, size_bytes, iteration, time.monotonic())
        self._send_word(host, _ANNOUNCED, op, size_bytes, iteration)

    def notify(self, host: int, op: int) -> None:
        """Notify a host that an op has ended.

        Raises:
            PeerError: The host is gone.
        """
        self._send_word(host, _ENDED, op)

    def step(self, until_s: float) -> bool:
        """Send and receive what is possible now; blocks for either until a deadline.

        Args:
            until_s: Deadline on the clock of `time.monotonic`, in seconds.

        Returns:
            Whether anything moved.

        Raises:
            PeerError: A host is gone.
        """
        now = time.monotonic()
        while (grant := self._grants.next(now)) is not None:
            self._send_word(grant[0], _GRANTED, *grant[1:])
        wanted = self._outbox.hosts(now)
        if self._rest and now < self._outbox.bucket.free_s:
            until_s = min(until_s, self._outbox.bucket.free_s)
        elif self._rest:
            wanted |= set(self._rest)
        watched = {host: self.peers.out[host, FLOWS] for host in wanted}
        for host, connection in watched.items():
            self._selector.register(connection, selectors.EVENT_WRITE, (host, FLOWS, None))
        try:
            wait_s = min(until_s, self._outbox.when_s(now), self._grants.when_s, now + _IDLE_S) - now
            events = self._selector.select(max(wait_s, 0.0))
        finally:
            for connection in watched.values():
                self._selector.unregister(connection)
        for key, _ in events:
            if key.data[1] == WORDS or key.data[2] is not None:
                self._take(key.fileobj, *key.data)
        if free := [key.data[0] for key, _ in events if key.data[1] == FLOWS and key.data[2] is None]:
            self._give(free, time.monotonic())
        return bool(events)

    def _prepare(self) -> None:
        for (host, purpose), connection in self.peers.into.items():
            connection.setblocking(False)
            frames = _Frames() if purpose == FLOWS else None
            self._selector.register(connection, selectors.EVENT_READ, (host, purpose, frames))
        for (_, purpose), connection in self.peers.out.items():
            if purpose == FLOWS:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    def _send_word(self, host: int, word: int, op: int, size_bytes: int = 0, iteration: int = 0) -> None:
        try:
            self.peers.out[host, WORDS].sendall(_WORD.pack(word, op, size_bytes, iteration))
        except OSError as error:
            raise _gone(host, error) from error

    def _take(self, connection: object, host: int, purpose: int, frames: _Frames | None) -> None:
        assert isinstance(connection, socket.socket)
        try:
            count = connection.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone(host, error) from error
        if not count:
            raise _gone(host, "it closed its connection")
        if frames is None:
            self._hear(host, self._words.pop(host, b"") + bytes(self._buffer[:count]))
        else:
            frames.walk(self._buffer[:count], lambda op, size: self._arrive(host, op, size))

    def _arrive(self, host: int, op: int, size_bytes: int) -> None:
        self._grants.arrived(host, op, size_bytes, time.monotonic())
        self.arrived(op, size_bytes)

    def _hear(self, host: int, text: bytes) -> None:
        whole = len(text) - len(text) % _WORD.size
        self._words[host] = text[whole:]
        for what, op, size, iteration in _WORD.iter_unpack(text[:whole]):
            if what == _ENDED:
                self.on_op_ended(op)
            elif what == _ANNOUNCED:
                self._grants.announce(host, op, size, iteration, time.monotonic())
            else:
                self._outbox.grant(op, size)

    def _give(self, free: list[int], now_s: float) -> None:
        """One chunk, to the host whose first flow goes first among those that take more."""
        started = [host for host in free if host in self._rest]
        if started:
            host, frame = started[0], self._rest.pop(started[0])
        elif (chunk := self._outbox.next(free, now_s)) is not None:
            host, frame = chunk[0], _frame(*chunk[1:])
        else:
            return
        try:
            count = self.peers.out[host, FLOWS].send(frame)
        except BlockingIOError:
            count = 0
        except OSError as error:
            raise _gone(host, error) from error
        if count < len(frame):
            self._rest[host] = frame[count:]
        self._outbox.bucket.take(count, time.monotonic())


def _frame(op: int, size_bytes: int) -> memoryview:
    """A piece of a flow, with its header."""
    frame = bytearray(_HEADER.size + size_bytes)
    _HEADER.pack_into(frame, 0, op, size_bytes)
    return memoryview(frame)


def _gone(host: int, why: object) -> PeerError:
    return PeerError(f"host {host} is gone ({why}); see its log, then start the job again")
