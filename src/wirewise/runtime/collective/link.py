"""TCP connection to a peer: frames are sent from and received into tensors' memory, without copies and blocking."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wirewise.hosts.connections import connection_counts
from wirewise.runtime.collective.memory import Scratch

if TYPE_CHECKING:
    from wirewise.runtime.collective.engine import Engine

__all__ = ["ASK", "DATA", "GONE", "HERE", "START", "EdgeStatistics", "FrameHeader", "PeerLink"]

DATA, START, ASK, HERE, GONE = range(5)
"""Kinds of frames: a message; the receiver has started the operation; are you there; I am; I give up, because."""

_FORM = struct.Struct("<BxHIIIQ")
_READS_AT_ONCE = 16
"""Reads of one peer before the others have their turn."""
_WAKING_BYTES, _WORTH_BYTES = 1 << 18, 1 << 15
"""Bytes of a message for which a rank is woken once; below the second what is missing is worth no call to say so. At
1 Gbit/s a rank was woken for every 27 kB and spent 2.0 times the processor time of gloo."""
_MOST_VIEWS = 1000
"""The kernel takes up to 1024 pieces at once."""


class EdgeStatistics(msgspec.Struct, kw_only=True):
    """Statistics of one direction between this rank and a peer, since the group was created."""

    source: int
    target: int
    messages: int = 0
    size_bytes: int = 0
    """Bytes of payload."""
    busy_s: float = 0.0
    """Seconds in which the source's kernel had unacknowledged bytes in flight."""
    round_trip_s: float = 0.0
    """Minimum round-trip time seen by the source's kernel, in seconds."""
    late_s: float = 0.0
    """Total seconds that the target was ready for messages that had not arrived."""
    latest_s: float = 0.0
    """The longest of these times."""

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth while busy, at the source, in bytes per second; close to the link's for many bytes, 0 if unused."""
        return self.size_bytes / self.busy_s if self.busy_s > 0 else 0.0


class FrameHeader(NamedTuple):
    """Header of a message's frame."""

    kind: int
    fingerprint: int
    """Fingerprint of program and size, which must match at both ends."""
    operation: int
    segment: int
    message: int
    size_bytes: int


class _Frame:
    """A frame on its way out."""

    __slots__ = ("done", "left", "payload_bytes", "views")

    def __init__(
        self, views: list[memoryview], payload_bytes: int, done: Callable[[], object] | None
    ) -> None:
        self.views, self.payload_bytes, self.done = views, payload_bytes, done
        self.left = _FORM.size + payload_bytes


class PeerLink:
    """Connection to a peer; `flush` and `read` move as many bytes as the kernel accepts or has.

    Raises:
        OSError: Raised by `flush`, `read` and `send`: the connection is broken.
    """

    def __init__(self, rank: int, peer: int, connection: socket.socket, engine: Engine) -> None:
        self.peer, self.socket, self._engine = peer, connection, engine
        self.sent = EdgeStatistics(source=rank, target=peer)
        self.received = EdgeStatistics(source=peer, target=rank)
        self.wants_to_write = False
        self.moved_s = 0.0
        """When bytes of messages were last sent or received."""
        self._queue: deque[_Frame] = deque()
        self._head = memoryview(bytearray(_FORM.size))
        self._head_bytes = self._payload_left = 0
        self._views = [self._head]
        self._header = FrameHeader(*[0] * 6)
        self._scratch: Scratch | None = None
        self._low_water = 1
        """Bytes that have to be there before the kernel tells of them."""
        self._unreadable = False
        """A frame was refused: where the next one begins is not known any more."""

    def send(self, header: FrameHeader, payload: list[memoryview], done: Callable[[], object] | None) -> None:
        """Queue a frame, and send what the kernel accepts; `done` is called once it has accepted a whole message."""
        self._queue.append(_Frame([memoryview(_FORM.pack(*header)), *payload], header.size_bytes, done))
        if len(self._queue) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what the kernel accepts now."""
        queue = self._queue
        while queue:
            frame = queue[0]
            try:
                count = self.socket.sendmsg(frame.views[:_MOST_VIEWS])
            except BlockingIOError:
                count = 0
            frame.left -= count
            if frame.left:
                _cut(frame.views, count)
                if count and frame.done is not None:
                    self.moved_s = time.perf_counter()
                self._want_to_write(True)
                return
            queue.popleft()
            if frame.done is not None:
                self._note_sent(frame)
                frame.done()
        self._want_to_write(False)

    def _note_sent(self, frame: _Frame) -> None:
        self.moved_s = time.perf_counter()
        self.sent.size_bytes += frame.payload_bytes
        self.sent.messages += 1

    def _want_to_write(self, wanted: bool) -> None:
        if wanted != self.wants_to_write:
            self.wants_to_write = wanted
            self._engine.wants_changed(self)

    def statistics(self) -> tuple[EdgeStatistics, EdgeStatistics]:
        """Statistics of both directions, sent and received."""
        counts = connection_counts(self.socket)
        self.sent.busy_s, self.sent.round_trip_s = counts.busy_s, counts.round_trip_s
        return self.sent, self.received

    @property
    def sleeps(self) -> bool:
        """Whether the socket wakes the reader only for large parts of a message."""
        return self._low_water > 1

    @property
    def idle(self) -> bool:
        """Whether nothing is left to send."""
        return not self._queue

    def drop(self) -> None:
        """Drop queued frames, except one partly sent."""
        while len(self._queue) > 1 or (self._queue and self._whole(self._queue[0])):
            self._queue.pop()
        for frame in self._queue:
            frame.done = None

    @staticmethod
    def _whole(frame: _Frame) -> bool:
        return frame.left == _FORM.size + frame.payload_bytes

    def read(self) -> None:
        """Read the bytes that the kernel has.

        Raises:
            ConnectionError: The peer has closed the connection.
        """
        for _ in range(0 if self._unreadable else _READS_AT_ONCE):
            wanted = self._payload_left + _FORM.size - self._head_bytes
            try:
                count = self.socket.recvmsg_into(self._views[:_MOST_VIEWS])[0]
            except BlockingIOError:
                break
            if count == 0:
                raise ConnectionResetError("closed")
            try:
                self._take(count)
            except BaseException:
                # Payload would be read as a header, and its size be asked of the allocator: 4 exabytes, seen.
                self._unreadable = True
                raise
            if count < wanted:
                break
        self._sleep_until_more()

    def _sleep_until_more(self) -> None:
        """Have the kernel tell of the rest of a message in large parts; never of more than the rest."""
        left = self._payload_left
        wanted = min(left, _WAKING_BYTES) if left >= _WORTH_BYTES else 1
        if wanted != self._low_water:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._low_water = wanted

    def _take(self, count: int) -> None:
        """Account for bytes that have been read: of the payload first, then of the next header."""
        if self._payload_left:
            if self._header.kind == DATA:
                self.moved_s = time.perf_counter()
            self._payload_left -= (used := min(count, self._payload_left))
            if self._payload_left:
                _cut(self._views, used)
                return
            count -= used
            self._arrived()
        self._head_bytes += count
        if self._head_bytes < _FORM.size:
            self._views = [self._head[self._head_bytes :]]
            return
        self._head_bytes = 0
        self._header = FrameHeader(*_FORM.unpack(self._head))
        self._views, self._scratch = self._engine.opened(self, self._header)
        # With the payload the next header is read too, which saves a call.
        self._views.append(self._head)
        self._payload_left = self._header.size_bytes
        if not self._payload_left:
            self._arrived()
            self._views = [self._head]

    def _arrived(self) -> None:
        if self._header.kind == DATA:
            self.received.messages += 1
            self.received.size_bytes += self._header.size_bytes
        scratch, self._scratch = self._scratch, None
        self._engine.arrived(self, self._header, scratch)


def _cut(views: list[memoryview], count: int) -> None:
    """Take so many bytes off the front."""
    passed = 0
    while count and count >= len(views[passed]):
        count -= len(views[passed])
        passed += 1
    del views[:passed]
    if count:
        views[0] = views[0][count:]
