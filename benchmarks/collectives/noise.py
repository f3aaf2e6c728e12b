"""Interrupts the processes of hosts: ten times a second each, for a random time, as other work on them would."""

import heapq
import os
import random
import signal
import threading
import time
from contextlib import suppress


class Noise:
    """Noise from `disturb` to `stop`; busy for U(0, `longest_s`) at 10 Hz, each host at its own moments."""

    def __init__(self, longest_s, seed=0):
        self._longest_s, self._random = longest_s, random.Random(seed)
        self._ended, self._thread = threading.Event(), None

    def disturb(self, lab):
        """Start on all processes of a lab."""
        pids = [pid for host in range(lab.num_hosts) for pid in lab.processes(host)]
        self._thread = threading.Thread(target=self._run, args=(pids,), daemon=True)
        self._thread.start()

    def stop(self):
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, pids):
        now = time.perf_counter()
        due = [(now + 0.1 * self._random.random(), pid, signal.SIGSTOP) for pid in pids]
        heapq.heapify(due)
        while not self._ended.wait(max(due[0][0] - time.perf_counter(), 0.0)):
            at, pid, what = heapq.heappop(due)
            send(pid, what)
            if what == signal.SIGSTOP:
                busy_s = self._longest_s * self._random.random()
                heapq.heappush(due, (at + busy_s, pid, signal.SIGCONT))
                heapq.heappush(due, (at + 0.1, pid, signal.SIGSTOP))
        for pid in pids:
            send(pid, signal.SIGCONT)


def send(pid, what):
    with suppress(ProcessLookupError):
        os.kill(pid, what)
