"""Make the processors of a host look slower: its processes are stopped for a part of every period."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

__all__ = ["Throttle"]

_PERIOD_S = 0.05


class Throttle:
    """Let processes run for one part in `factor` of the time, from now until `stop`.

    This emulates a slower host: in the long run each process gets at most that share of a processor, but at
    its full speed for up to 50 ms at a time. The network works on while they are stopped.

    Args:
        processes: Lists the process ids; asked once a period.
        factor: Factor by which they look slower, at least 1.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], factor: float) -> None:
        self._processes, self._factor = processes, factor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._cycle, name="wirewise-throttle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let all processes run again."""
        self._ended.set()
        self._thread.join()

    def _cycle(self) -> None:
        stopped_s = _PERIOD_S * (1 - 1 / self._factor)
        while not self._ended.is_set():
            pids = list(self._processes())
            _signal(pids, signal.SIGSTOP)
            self._ended.wait(stopped_s)
            _signal(pids, signal.SIGCONT)
            self._ended.wait(_PERIOD_S - stopped_s)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
