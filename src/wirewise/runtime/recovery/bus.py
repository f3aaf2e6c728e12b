"""What agents of several hosts tell each other through the store of host 0, on a thread that may block."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

import msgspec

from wirewise.runtime.recovery.generations import Command, Event, GiveUp, HostLost

__all__ = ["Bus"]

_POLL_S = 0.01
_MARGIN_S = 1.0
"""The coordinator counts a host as lost so much later than the host stops its processes."""
_any = msgspec.json.Decoder(Event | Command)


class Bus:
    """Events on their way to the coordinator, and its commands on their way to the other hosts.

    Every host shows that it lives by a counter. One that does not reach the store for the length of its lease gives up,
    as its agent then stops its processes; the coordinator counts it as lost a second later.

    Args:
        store: Store that all agents share.
        host: Number of this host.
        hosts: Number of hosts.
        lease_s: Length of the lease.

    Attributes:
        wake: Descriptor that can be read when something has come.
    """

    def __init__(self, store: Any, host: int, hosts: int, lease_s: float) -> None:
        self._store, self._host, self._hosts, self._lease_s = store, host, hosts, lease_s
        self.wake, self._waker = os.pipe()
        self._came: queue.SimpleQueue[Event | Command] = queue.SimpleQueue()
        self._going: queue.SimpleQueue[Event | Command] = queue.SimpleQueue()
        self._read: dict[str, int] = {}
        self._beats: dict[int, tuple[int, float]] = {}
        self._reached_s = time.monotonic()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._serve, name="wirewise-bus", daemon=True)]
        if host:
            self._threads.append(threading.Thread(target=self._watch, name="wirewise-lease", daemon=True))
        for thread in self._threads:
            thread.start()

    def post(self, told: Event | Command) -> None:
        """Send something: events to the coordinator, commands to all others."""
        self._going.put(told)

    def take(self) -> list[Event | Command]:
        """What has come."""
        os.read(self.wake, 4096)
        found = []
        while not self._came.empty():
            found.append(self._came.get())
        return found

    def close(self) -> None:
        """Send what is left and end the threads; one that waits for a dead store is left alone."""
        if not self._stopped.is_set():
            self._stopped.set()
            for thread in self._threads:
                thread.join(1.0)

    def _put(self, told: Event | Command) -> None:
        self._came.put(told)
        os.write(self._waker, b"x")

    def _serve(self) -> None:
        others = [host for host in range(self._hosts) if host != self._host]
        try:
            if self._host:
                # What was commanded before is not for a host that joins again.
                self._read["commands"] = self._store.add("commands/count", 0)
            while True:
                last = self._stopped.is_set()
                mine = "commands" if self._host == 0 else f"events/{self._host}"
                while not self._going.empty():
                    number = self._store.add(f"{mine}/count", 1)
                    self._store.set(f"{mine}/{number}", _encoded(self._going.get()))
                if last:
                    return
                self._store.add(f"beat/{self._host}", 1)
                for box in [f"events/{host}" for host in others] if self._host == 0 else ["commands"]:
                    self._collect(box)
                if self._host == 0:
                    self._check(others)
                self._reached_s = time.monotonic()
                time.sleep(_POLL_S)
        except RuntimeError as error:
            if not self._stopped.is_set():
                self._put(GiveUp(self._lost(str(error).splitlines()[0])))

    def _collect(self, box: str) -> None:
        read = self._read.get(box, 0)
        count = self._store.add(f"{box}/count", 0)
        while read < count:
            read += 1
            self._put(_any.decode(self._store.get(f"{box}/{read}")))
        self._read[box] = read

    def _check(self, others: list[int]) -> None:
        now = time.monotonic()
        for host in others:
            beats = self._store.add(f"beat/{host}", 0)
            known, since = self._beats.get(host, (-1, now))
            if beats != known:
                self._beats[host] = beats, now
            elif beats and now - since > self._lease_s + _MARGIN_S:
                self._beats[host] = beats, float("inf")
                self._put(HostLost(host, time.time()))

    def _watch(self) -> None:
        """Give up where the store does not answer, whatever the other thread waits for."""
        while not self._stopped.wait(_POLL_S):
            if time.monotonic() - self._reached_s > self._lease_s:
                self._put(GiveUp(self._lost(f"no answer for {self._lease_s:g} s")))
                return

    def _lost(self, why: str) -> str:
        return (
            f"host {self._host} does not reach the store of host 0 [{why}]; it stops its ranks, so that never two "
            "parts of a cut network train on: look at the network and at host 0, then start the job again"
        )


def _encoded(told: Event | Command) -> bytes:
    return msgspec.json.encode(told)
