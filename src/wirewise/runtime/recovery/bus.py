"""Messages between agents of several hosts through host 0's store, on threads that may block."""

from __future__ import annotations

import hmac
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from torch.distributed import DistStoreError

from wirewise.log import logger
from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.generations import AbortJob, Command, Event, HostLost

__all__ = ["Bus"]

_log = logger("recovery")
_BEAT_S = 0.05
_LOOK = timedelta(milliseconds=200)
"""Longest wait for something to come, after which a reader looks whether it is to end."""
_MARGIN_S = 1.0
"""The coordinator counts a host as lost so much later than the host stops its processes."""
_SIGNATURE = 32
"""Bytes of a signature in front of a message."""
_any = msgspec.json.Decoder(Event | Command)


class Bus:
    """Events in flight to the coordinator, and its commands in flight to the other hosts.

    Readers block in the store for the next entry, so delivery is immediate. Every host increments a heartbeat
    counter. A host that cannot reach the store for the length of its lease gives up, and its agent stops its
    processes; the coordinator counts it as lost a second later.

    Args:
        store: Store that all agents share.
        host: Index of this host.
        hosts: Number of hosts.
        lease_s: Length of the lease.
        token: Secret of the job, which signs messages; unsigned ones are refused.

    Attributes:
        wake: Descriptor that becomes readable when a message has arrived.
    """

    def __init__(self, store: Any, host: int, hosts: int, lease_s: float, token: str = "") -> None:
        self._token = token.encode()
        self._store, self._host, self._hosts, self._lease_s = store, host, hosts, lease_s
        self.wake, self._waker = os.pipe()
        self._came: queue.SimpleQueue[Event | Command] = queue.SimpleQueue()
        self._going: queue.SimpleQueue[Event | Command | None] = queue.SimpleQueue()
        self._beats: dict[int, tuple[int, float]] = {}
        self._reached_s = time.monotonic()
        self._stopped = threading.Event()
        # A wait holds its client, so each thread has one of its own.
        loops = [self._send, self._beat, self._read_events if host == 0 else self._read_commands]
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(loop, store.clone()), name="wirewise-bus", daemon=True
            )
            for loop in loops
        ]
        if host:
            self._threads.append(threading.Thread(target=self._watch, name="wirewise-lease", daemon=True))
        for thread in self._threads:
            thread.start()

    def post(self, message: Event | Command) -> None:
        """Send a message: events to the coordinator, commands to all others."""
        self._going.put(message)

    def take(self) -> list[Event | Command]:
        """Take the received messages."""
        os.read(self.wake, 4096)
        found = []
        while not self._came.empty():
            found.append(self._came.get())
        return found

    def close(self) -> None:
        """Send what is queued and end the threads; one that is blocked on a dead store is abandoned."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._going.put(None)
            for thread in self._threads:
                thread.join(1.0)

    def _put(self, message: Event | Command) -> None:
        self._came.put(message)
        os.write(self._waker, b"x")

    def _guarded(self, loop: Callable[[Any], None], store: Any) -> None:
        try:
            loop(store)
        except RuntimeError as error:
            if not self._stopped.is_set():
                self._put(AbortJob(self._lost(str(error).splitlines()[0])))

    def _send(self, store: Any) -> None:
        box = "commands" if self._host == 0 else f"events/{self._host}"
        while (message := self._going.get()) is not None:
            # This host alone writes here. It counts what is there: one that dies in between leaves no gap.
            key = f"{box}/{store.add(f'{box}/count', 0) + 1}"
            store.set(key, self._signed(key, msgspec.json.encode(message)))
            store.add(f"{box}/count", 1)
            if self._host:
                store.set(f"bell/{store.add('bell', 1)}", b"")

    def _read_commands(self, store: Any) -> None:
        # What was commanded before is not for a host that joins again.
        read = store.add("commands/count", 0)
        while not self._stopped.is_set():
            if _came(store, f"commands/{read + 1}"):
                read += 1
                self._open(f"commands/{read}", store)

    def _read_events(self, store: Any) -> None:
        read, rung = dict.fromkeys(range(1, self._hosts), 0), 0
        while not self._stopped.is_set():
            _came(store, f"bell/{rung + 1}")
            now = store.add("bell", 0)
            for host in read if now > rung else ():
                count = store.add(f"events/{host}/count", 0)
                for number in range(read[host] + 1, count + 1):
                    self._open(f"events/{host}/{number}", store)
                read[host] = count
            rung = now

    def _signed(self, key: str, text: bytes) -> bytes:
        """A message with its signature in front; the key is part of it, so that none can be put elsewhere."""
        return hmac.digest(self._token, key.encode() + b"\0" + text, "sha256") + text

    def _open(self, key: str, store: Any) -> None:
        """Take a message in, if it is signed by an agent of this job."""
        whole = bytes(store.get(key))
        text = whole[_SIGNATURE:]
        if hmac.compare_digest(self._signed(key, text), whole):
            self._put(_any.decode(text))
        else:
            _log.warning(
                "host %d refused a message in %s of the store, which no agent of this job has signed",
                self._host,
                key,
            )

    def _beat(self, store: Any) -> None:
        while not self._stopped.is_set():
            store.add(f"beat/{self._host}", 1)
            if self._host == 0:
                self._check(store)
            self._reached_s = time.monotonic()
            self._stopped.wait(_BEAT_S)

    def _check(self, store: Any) -> None:
        now = time.monotonic()
        for host in range(1, self._hosts):
            beats = store.add(f"beat/{host}", 0)
            known, since = self._beats.get(host, (-1, now))
            if beats != known:
                self._beats[host] = beats, now
            elif beats and now - since > self._lease_s + _MARGIN_S:
                self._beats[host] = beats, float("inf")
                self._put(HostLost(host, clock_s()))

    def _watch(self) -> None:
        """Give up where the store does not answer, whatever the other threads wait for."""
        while not self._stopped.wait(_BEAT_S):
            if time.monotonic() - self._reached_s > self._lease_s:
                self._put(AbortJob(self._lost(f"no answer for {self._lease_s:g} s")))
                return

    def _lost(self, why: str) -> str:
        return (
            f"host {self._host} does not reach the store of host 0 [{why}]; it stops its ranks, so that never two "
            "parts of a cut network train on: look at the network and at host 0, then start the job again, which "
            "resumes from protect(checkpoints=FOLDER)"
        )


def _came(store: Any, key: str) -> bool:
    """Whether a key is set, within a while."""
    try:
        store.wait([key], _LOOK)
    except DistStoreError:
        return False
    return True
