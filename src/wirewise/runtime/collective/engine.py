"""Engine that moves the bytes of all operations of a group: one epoll loop, run by whichever thread waits.

A caller that waits for its operation runs the loop itself, which saves a thread switch. Operations without a waiter
are moved by a background thread. Memory for unexpected messages is limited: peers hold back what exceeds
`_EAGER_BYTES` until this rank has started the operation.

This is the engine of collectives, where the program defines the order of chunks on each edge, and the delay between
an arrival and the dependent act must be minimal. `runtime.flows.engine` is the engine of flows between tasks, where
the order is decided online at both ends for each chunk.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping

from wirewise.errors import PeerError
from wirewise.runtime.collective.acts import MessageAct
from wirewise.runtime.collective.execution import Execution
from wirewise.runtime.collective.link import (
    ASK,
    DATA,
    GONE,
    HERE,
    START,
    EdgeStatistics,
    FrameHeader,
    PeerLink,
)
from wirewise.runtime.collective.memory import Pool, Scratch
from wirewise.runtime.collective.work import Work

__all__ = ["Engine"]

_KINDS = frozenset((DATA, START, ASK, HERE, GONE))
_EAGER_BYTES = 1 << 20
_LOOK_S = 0.2
"""How often the loop looks for silent peers and for the end of its wait."""
_ASK_S = 1.0
"""Wait after which ranks ask each other which operation they are in, as they may be in different ones."""
_KEPT = 4096
"""Operations that are remembered, so that a frame for one that has ended is known to be one too many."""
_GRACE_S = 1.0
"""Time to tell the others why this rank gives up."""
_PATIENCE = 4
"""Timeouts without any progress that end an operation although all peers answer."""


class Engine:
    """Connections of a rank, and its operations in flight.

    Args:
        rank: Rank of this process.
        connections: Non-blocking socket for each peer.
        timeout_s: Seconds without any bytes after which an unresponsive peer counts as hung.
    """

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], timeout_s: float) -> None:
        self.rank, self.timeout_s = rank, timeout_s
        self.pool = Pool()
        self._links = {peer: PeerLink(rank, peer, c, self) for peer, c in connections.items()}
        self._by_file = {link.socket.fileno(): link for link in self._links.values()}
        self._epoll = select.epoll()
        for file in self._by_file:
            self._epoll.register(file, select.EPOLLIN)
        self._active: dict[int, tuple[Execution, Work]] = {}
        self._ended: deque[tuple[Execution, Work, BaseException | None]] = deque()
        self._history = 0
        """Fingerprint of all operations so far, the same on ranks that called the same ones."""
        self._called: OrderedDict[int, tuple[int, str]] = OrderedDict()
        """Fingerprint and name of the last operations, by number; of those that have ended, too."""
        self._early: dict[int, list[tuple[int, FrameHeader, Scratch]]] = defaultdict(list)
        self._lost: dict[int, str] = {}
        self._started: set[tuple[int, int]] = set()
        self._eager_bytes: dict[tuple[int, int], int] = defaultdict(int)
        self._parked: dict[tuple[int, int], deque[Callable[[], None]]] = defaultdict(deque)
        self._error: PeerError | None = None
        self._since_s, self._asked_since_s, self._questions = 0.0, 0.0, 0
        """When the first of the operations in flight began; the last progress before peers were asked."""
        self._answered: set[int] = set()
        self._lock = threading.RLock()
        self._driver = threading.Lock()
        self._wanted, self._closing = threading.Event(), False
        self._threads: list[threading.Thread] = []
        self._calling = 0
        """Threads in the background that call callbacks of futures, which may wait for other operations."""

    # Operations.

    def submit(self, execution: Execution, work: Work, *, background: bool) -> None:
        """Start an operation, to be completed by `Work.wait`, or by itself if `background`."""
        if self._error is None and not execution.prepared.incoming_bytes:
            self._listen()
        with self._lock:
            if self._error is None:
                self._begin(execution, work)
            else:
                self._ended.append((execution, work, self._error))
        self._settle()
        if background and not work.is_completed():
            self._run_in_background()

    def _begin(self, execution: Execution, work: Work) -> None:
        if not self._active:
            self._since_s = time.perf_counter()
        self._active[execution.operation] = (execution, work)
        self._note_called(execution)
        try:
            for peer in execution.peers & self._lost.keys():
                raise self._failure(execution, peer, self._lost[peer])
            # The peer holds more than that back until this rank begins: it bounds the buffers for later operations.
            for peer, size_bytes in execution.prepared.incoming_bytes.items():
                if size_bytes > _EAGER_BYTES:
                    self._control(peer, START, execution.operation)
            execution.start()
            for peer, header, scratch in self._early.pop(execution.operation, ()):
                self._check(execution, peer, header)
                execution.take(header.segment, header.message, scratch)
        except Exception as error:
            self._give_up(self._as_peer_error(error))

    def _note_called(self, execution: Execution) -> None:
        """Stamp an operation with all that were called before it: a rank that left one out is found by the next."""
        self._history = zlib.crc32(b"%d,%d" % (self._history, execution.prepared.fingerprint)) & 0xFFFF
        execution.stamp = self._history
        self._called[execution.operation] = execution.stamp, execution.name
        if len(self._called) > _KEPT:
            self._called.popitem(last=False)

    def ended(self, execution: Execution, error: BaseException | None = None) -> None:
        """Mark an operation as done or failed; waiters are notified outside the lock."""
        self._ended.append((*self._active.pop(execution.operation), error))
        for peer in self._links:
            key = (execution.operation, peer)
            self._started.discard(key)
            self._eager_bytes.pop(key, None)
            self._parked.pop(key, None)

    def wait(self, work: Work, timeout_s: float | None) -> None:
        """Move bytes until an operation has ended or timed out."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not work.is_completed() and time.monotonic() < deadline:
            if not self._driver.acquire(blocking=False):
                work.block(min(_LOOK_S, max(deadline - time.monotonic(), 0.0)))
                continue
            try:
                self._turn(self._patience_s)
            finally:
                self._driver.release()
            # Not while this is the thread that moves the bytes: a callback may wait for another operation.
            self._settle()
        if self._active:
            self._run_in_background()

    def in_flight(self) -> list[Work]:
        """Operations that have not ended."""
        with self._lock:
            return [work for _, work in self._active.values()]

    def statistics(self) -> list[EdgeStatistics]:
        """Bytes and times of sends to and receives from each peer."""
        with self._lock:
            return [edge for link in self._links.values() for edge in link.statistics()]

    def received_from(self, peer: int) -> EdgeStatistics:
        """Bytes and times of receives from a peer."""
        return self._links[peer].received

    def close(self) -> None:
        """Stop the thread and close the connections; operations in flight fail."""
        self._closing = True
        self._end_threads(lambda: self._calling)
        # Nobody polls what is closed; not for ever, as who calls this may be the one.
        alone = self._driver.acquire(timeout=_GRACE_S)
        try:
            with self._lock:
                if self._error is None:
                    self._error = PeerError("the group was closed; make another one with `connect`")
                self._drop_all(self._error)
                for link in self._links.values():
                    link.socket.close()
                self._epoll.close()
        finally:
            if alone:
                self._driver.release()
        self._settle()
        # Callbacks that waited for an operation go on now that it has failed.
        self._end_threads(lambda: 0)

    # The loop.

    def _run_in_background(self) -> None:
        """Have a thread move bytes that is not in a callback, which may wait for just these."""
        with self._lock:
            if len(self._threads) <= self._calling and not self._closing:
                thread = threading.Thread(target=self._background, name="wirewise-collective", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._wanted.set()

    def _background(self) -> None:
        while True:
            self._wanted.wait()
            if self._closing:
                return
            self._wanted.clear()
            while (self._active or self._ended) and not self._closing:
                with self._driver:
                    if self._active and not self._ended and not self._closing:
                        self._turn(self._patience_s)
                if self._ended:
                    self._settle_in_background()

    def _settle_in_background(self) -> None:
        with self._lock:
            self._calling += 1
        try:
            self._settle()
        finally:
            with self._lock:
                self._calling -= 1

    def _end_threads(self, kept: Callable[[], int]) -> None:
        """Wait for the end of all threads in the background but so many, which may be in callbacks; not for ever."""
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        until = time.monotonic() + _GRACE_S
        while sum(thread.is_alive() for thread in others) > kept() and time.monotonic() < until:
            self._wanted.set()
            time.sleep(0.001)

    @property
    def _patience_s(self) -> float:
        return min(_LOOK_S, self.timeout_s / 8)

    def _turn(self, patience_s: float) -> None:
        """Wait for events, and handle those that came."""
        if self._epoll.closed:
            return
        events = self._epoll.poll(patience_s)
        with self._lock:
            try:
                for file, event in events:
                    self._handle(self._by_file[file], event)
                if not events and self._active:
                    self._read_rests()
                    self._look_for_silence()
            except Exception as error:
                self._give_up(self._as_peer_error(error))

    def _read_rests(self) -> None:
        """Take in what is too little to be told of: nobody is silent while parts of a message come over a slow link."""
        for link in self._links.values():
            if link.sleeps:
                self._handle(link, select.EPOLLIN)

    def _listen(self) -> None:
        """Take in what has come: a rank that only sends waits for nothing, and would not hear that another gave up."""
        if self._driver.acquire(blocking=False):
            try:
                self._turn(0.0)
            finally:
                self._driver.release()
            self._settle()

    def _handle(self, link: PeerLink, event: int) -> None:
        if link.peer in self._lost:
            return
        try:
            if event & select.EPOLLOUT:
                link.flush()
            if event & ~select.EPOLLOUT:
                link.read()
        except OSError as error:
            self._lose(link, error)

    def _settle(self) -> None:
        """Tell the waiting of what has ended, without the lock: they may start the next operation at once."""
        while True:
            with self._lock:
                if not self._ended:
                    return
                execution, work, error = self._ended.popleft()
            work.end(execution.memory.finish, error, before_callbacks=self._hand_over)

    def _hand_over(self) -> None:
        """Let another thread finish the other operations: a callback may wait for one of them."""
        if self._active or self._ended:
            self._run_in_background()

    # Frames out.

    def send(
        self, execution: Execution, act: MessageAct, segment: int, size_bytes: int, done: Callable[[], None]
    ) -> None:
        """Send a message now, or once its receiver has started the operation; `done` is called when memory is free."""
        key = (execution.operation, act.peer)

        def go() -> None:
            fields = (execution.operation, segment, act.message, size_bytes)
            header = FrameHeader(DATA, execution.stamp, *fields)
            views = execution.memory.views(act.chunks, segment)
            self._put(self._links[act.peer], header, views, done)

        if execution.prepared.outgoing_bytes[act.peer] > _EAGER_BYTES and key not in self._started:
            self._eager_bytes[key] += size_bytes
            if self._eager_bytes[key] > _EAGER_BYTES:
                self._parked[key].append(go)
                return
        go()

    def _control(self, peer: int, kind: int, operation: int = 0, text: str = "", stamp: int = 0) -> None:
        payload = text.encode()
        header = FrameHeader(kind, stamp, operation, 0, 0, len(payload))
        self._put(self._links[peer], header, [memoryview(payload)] if payload else [], None)

    def _put(
        self, link: PeerLink, header: FrameHeader, views: list[memoryview], done: Callable[[], None] | None
    ) -> None:
        if link.peer in self._lost:
            return
        try:
            link.send(header, views, done)
        except OSError as error:
            with contextlib.suppress(OSError):
                link.read()  # It may have said why.
            self._lose(link, error)

    def wants_changed(self, link: PeerLink) -> None:
        """Poll for writability only while something is queued."""
        events = select.EPOLLIN | (select.EPOLLOUT if link.wants_to_write else 0)
        self._epoll.modify(link.socket.fileno(), events)

    # Frames in.

    def opened(self, link: PeerLink, header: FrameHeader) -> tuple[list[memoryview], Scratch | None]:
        """Memory for the bytes of a frame: the tensors' own, or a buffer."""
        if header.kind == DATA and (found := self._active.get(header.operation)) is not None:
            self._check(found[0], link.peer, header)
            views = found[0].place(header.segment, header.message)
            if views is not None:
                return views, None
        # Of an operation under way `_check` has compared the size; of others senders hold back what exceeds this.
        under_way = header.kind == DATA and header.operation in self._active
        if header.kind not in _KINDS or not (under_way or header.size_bytes <= _EAGER_BYTES):
            raise PeerError(
                f"rank {link.peer} sent a frame of kind {header.kind} and {header.size_bytes} bytes, which no "
                f"operation of rank {self.rank} expects; use the same version of wirewise on all ranks, and let "
                "nothing else connect to their ports"
            )
        scratch = self.pool.take(header.size_bytes)
        return [scratch.view[: header.size_bytes]] if header.size_bytes else [], scratch

    def arrived(self, link: PeerLink, header: FrameHeader, scratch: Scratch | None) -> None:
        """Handle a completely received frame."""
        if header.kind == DATA:
            self._take(link.peer, header, scratch)
            return
        assert scratch is not None
        if header.kind == START:
            self._started.add((header.operation, link.peer))
            for go in self._parked.pop((header.operation, link.peer), ()):
                go()
        elif header.kind == ASK:
            self._compare(link.peer, header, bytes(scratch.view[: header.size_bytes]).decode())
            self._control(link.peer, HERE)
        elif header.kind == HERE:
            self._answered.add(link.peer)
        elif header.kind == GONE:
            raise PeerError(bytes(scratch.view[: header.size_bytes]).decode())
        self.pool.give(scratch)

    def _take(self, peer: int, header: FrameHeader, scratch: Scratch | None) -> None:
        found = self._active.get(header.operation)
        if found is None:
            assert scratch is not None
            if header.operation in self._called:
                raise self._disagreement(header.operation, peer)
            self._early[header.operation].append((peer, header, scratch))
            return
        self._check(found[0], peer, header)
        found[0].take(header.segment, header.message, scratch)

    def _check(self, execution: Execution, peer: int, header: FrameHeader) -> None:
        same = header.fingerprint == execution.stamp
        if not same or not execution.expects(peer, header.segment, header.message, header.size_bytes):
            raise self._disagreement(execution.operation, peer)

    def _compare(self, peer: int, header: FrameHeader, name: str) -> None:
        """Two ranks that wait for each other may be in operations that do not fit."""
        called = self._called.get(header.operation)
        if called is not None and called[0] != header.fingerprint:
            raise self._disagreement(header.operation, peer, name)

    def _disagreement(self, operation: int, peer: int, name: str = "") -> PeerError:
        now = "is" if operation in self._active else "was"
        other = f"rank {peer} in {name}" if name else f"rank {peer} in another operation"
        return PeerError(
            f"rank {self.rank} {now} in {self._called[operation][1]} and {other}, or one of another program, root, "
            "size or type, or they called unlike ones before; let all ranks call the same operations in the same order"
        )

    # Peers that die, stop responding or give up.

    def _lose(self, link: PeerLink, error: OSError) -> None:
        self._lost[link.peer] = error.strerror or str(error)
        self._epoll.unregister(link.socket.fileno())
        for execution, _ in self._active.values():
            if link.peer in execution.peers:
                raise self._failure(execution, link.peer, self._lost[link.peer])

    def _look_for_silence(self) -> None:
        """Ask after a second, and after half of the timeout, whether peers are there and in the same operation.

        Who has not answered the last question at the end of the timeout is silent.
        """
        moved_s = max([self._since_s, *(link.moved_s for link in self._links.values())])
        idle_s = time.perf_counter() - moved_s
        execution = next(iter(self._active.values()))[0]
        if self._asked_since_s != moved_s:
            self._asked_since_s, self._questions = moved_s, 0
        due = (min(_ASK_S, self.timeout_s / 4), self.timeout_s / 2)
        if self._questions < len(due):
            if idle_s > due[self._questions]:
                self._questions, self._answered = self._questions + 1, set()
                for peer in execution.peers:
                    self._control(peer, ASK, execution.operation, execution.name, execution.stamp)
            return
        silent = sorted(execution.peers - self._answered)
        if idle_s > self.timeout_s and silent:
            raise self._failure(execution, silent[0], f"sent nothing for {self.timeout_s:g} s")
        if idle_s > _PATIENCE * self.timeout_s:
            raise self._failure(execution, min(execution.peers), "waits for ever, as this rank does")

    def _failure(self, execution: Execution, peer: int, how: str) -> PeerError:
        edge = f"{peer}->{self.rank}" if execution.missing[peer] else f"{self.rank}->{peer}"
        closed = "" if "sent nothing" in how or "waits" in how else "closed its connection: "
        return PeerError(
            f"edge {edge} of {execution.name}: rank {self.rank} waited for rank {peer}, which {closed}{how} (it died, "
            f"hangs or lost its network). Look at the log of rank {peer}; then start again from the last checkpoint"
        )

    def _as_peer_error(self, error: Exception) -> PeerError:
        """Whatever goes wrong here, the others must hear of it, and nobody may wait for ever."""
        if isinstance(error, PeerError):
            return error
        return PeerError(f"rank {self.rank} failed in an operation: {error!r}; look at its log")

    def _give_up(self, error: PeerError) -> None:
        """Fail all operations, and tell the others why."""
        self._error = error
        self._drop_all(error)
        for link in self._links.values():
            link.drop()
        for peer in self._links:
            with contextlib.suppress(PeerError):
                self._control(peer, GONE, text=str(error))
        self._last_words()

    def _last_words(self) -> None:
        deadline = time.perf_counter() + _GRACE_S
        while time.perf_counter() < deadline:
            waiting = [link for peer, link in self._links.items() if peer not in self._lost and not link.idle]
            if not waiting:
                return
            room = select.poll()
            for link in waiting:
                room.register(link.socket, select.POLLOUT)
            room.poll(50)
            for link in waiting:
                try:
                    link.flush()
                except OSError as error:
                    self._lost[link.peer] = str(error)

    def _drop_all(self, error: BaseException) -> None:
        for execution, _ in list(self._active.values()):
            self.ended(execution, error)
