"""Operation in flight on one rank: every message is sent and received as soon as the program allows.

There is no barrier between steps. Each peer advances at its own pace: a slow one delays only dependent messages
(ADAPT, HPDC'18, section 3). Messages of a peer go out in the order in which they became ready.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from wirewise.runtime.collective.memory import Memory, Scratch
from wirewise.runtime.collective.prepared import PreparedRun

if TYPE_CHECKING:
    from wirewise.runtime.collective.engine import Engine

__all__ = ["Execution"]


class Execution:
    """Operation in flight.

    Args:
        name: Name in error messages.
        operation: Sequence number of the operation in the group.
        prepared: This rank's prepared program.
        memory: Memory of the chunks.
        engine: Engine that sends messages, lends buffers and is notified of the end.
    """

    def __init__(
        self, name: str, operation: int, prepared: PreparedRun, memory: Memory, engine: Engine
    ) -> None:
        self.name, self.operation, self.prepared, self.memory = name, operation, prepared, memory
        self.stamp = 0
        """Fingerprint of the operation and of all that were called before it."""
        self._engine = engine
        self._acts, self._sizes = prepared.acts, prepared.sizes
        self._waits = [list(prepared.acts.waits) for _ in prepared.sizes]
        self._left = len(prepared.sizes) * len(prepared.acts.acts)
        self._ready_s: dict[tuple[int, int], float] = {}
        """When a message could have been taken in, by segment and act."""
        self._held: dict[tuple[int, int], Scratch] = {}
        self._done: deque[tuple[int, int]] = deque()
        self._draining = False
        self.missing = prepared.missing.copy()
        """Messages that are still to be received from each peer."""
        self.unsent = prepared.unsent.copy()
        """Messages that are still to be sent to each peer."""

    @property
    def peers(self) -> set[int]:
        """Peers on which completion depends."""
        return {peer for found in (self.missing, self.unsent) for peer, count in found.items() if count}

    def start(self) -> None:
        """Send everything that is ready."""
        # What is sent at once must not look for the end before all has begun.
        self._draining = True
        first = [number for number, waits in enumerate(self._acts.waits) if not waits]
        for segment in range(len(self._sizes)):
            for number in first:
                self._ready(segment, number)
        self._draining = False
        self._drain()

    def expects(self, peer: int, segment: int, message: int, size_bytes: int) -> bool:
        """Whether this rank expects such a message from the peer."""
        number = self._acts.receiving.get(message)
        if number is None or segment >= len(self._sizes):
            return False
        return self._acts.acts[number].peer == peer and self._sizes[segment][number] == size_bytes

    def place(self, segment: int, message: int) -> list[memoryview] | None:
        """Destination of a message's bytes, if they can be written at once. None if they must wait or be reduced."""
        number = self._acts.receiving[message]
        act = self._acts.acts[number]
        if self._waits[segment][number] or any(act.reduces):
            return None
        return self.memory.views(act.chunks, segment)

    def take(self, segment: int, message: int, scratch: Scratch | None) -> None:
        """Handle an arrived message, in a buffer or in place."""
        number = self._acts.receiving[message]
        peer = self._acts.acts[number].peer
        self.missing[peer] -= 1
        ready_s = self._ready_s.pop((segment, number), None)
        if ready_s is not None:
            self._note_lateness(peer, time.perf_counter() - ready_s)
        if scratch is None:
            self._finish(segment, number)
        elif self._waits[segment][number]:
            self._held[segment, number] = scratch
        else:
            self._write(segment, number, scratch)
        self._drain()

    def _note_lateness(self, peer: int, late_s: float) -> None:
        edge = self._engine.received_from(peer)
        edge.late_s += late_s
        edge.latest_s = max(edge.latest_s, late_s)

    def _ready(self, segment: int, number: int) -> None:
        """All that an act waits for is done."""
        act = self._acts.acts[number]
        size_bytes = self._sizes[segment][number]
        if not size_bytes:
            self._finish(segment, number)
        elif act.sends:
            self._engine.send(self, act, segment, size_bytes, lambda: self._sent(segment, number))
        elif (held := self._held.pop((segment, number), None)) is not None:
            self._write(segment, number, held)
        else:
            self._ready_s[segment, number] = time.perf_counter()

    def _sent(self, segment: int, number: int) -> None:
        self.unsent[self._acts.acts[number].peer] -= 1
        self._finish(segment, number)
        self._drain()

    def _write(self, segment: int, number: int, scratch: Scratch) -> None:
        act = self._acts.acts[number]
        self.memory.write(act.chunks, act.reduces, segment, scratch.tensor)
        self._engine.pool.give(scratch)
        self._finish(segment, number)

    def _finish(self, segment: int, number: int) -> None:
        self._left -= 1
        self._done.append((segment, number))

    def _drain(self) -> None:
        """Wake what waits for finished acts; a call from inside leaves that to the one under way."""
        if self._draining:
            return
        self._draining = True
        while self._done:
            segment, number = self._done.popleft()
            waits = self._waits[segment]
            for other in self._acts.wakes[number]:
                waits[other] -= 1
                if not waits[other]:
                    self._ready(segment, other)
        self._draining = False
        if not self._left:
            self._engine.ended(self)
