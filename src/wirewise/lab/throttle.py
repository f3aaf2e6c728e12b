"""Emulate a slower host by stopping its processes for a part of every period."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

__all__ = ["Throttle"]

_PERIOD_S = 0.05


class Throttle:
    """Throttle that lets processes run for 1/`factor` of the time, from now until `stop`.

    This emulates a slower host: on average each process gets at most that fraction of a CPU, but at full speed for up
    to 50 ms at a time. The network continues while they are stopped.

    Args:
        send: Sends a signal to all current processes, twice per period.
        factor: Slowdown factor, at least 1.
    """

    def __init__(self, send: Callable[[int], object], factor: float) -> None:
        self._send, self._factor = send, factor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._cycle, name="wirewise-throttle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Resume all processes."""
        self._ended.set()
        self._thread.join()

    def _cycle(self) -> None:
        stopped_s = _PERIOD_S * (1 - 1 / self._factor)
        while not self._ended.is_set():
            self._send(signal.SIGSTOP)
            self._ended.wait(stopped_s)
            self._send(signal.SIGCONT)
            self._ended.wait(_PERIOD_S - stopped_s)
