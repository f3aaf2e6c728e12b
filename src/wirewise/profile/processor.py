"""Time that a thread had a processor, and time that it was ready to run and had none."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["ProcessorClock", "ProcessorTimes"]

_NS = 1e-9
_MOST_BYTES = 100


class ProcessorTimes(NamedTuple):
    """Seconds since the thread began."""

    cpu_s: float
    """Seconds on a processor."""
    preempted_s: float
    """Seconds in which it was ready to run and others had the processors."""


class ProcessorClock:
    """Reads the times of the thread that makes it, which Linux keeps exactly, in 2 us."""

    def __init__(self) -> None:
        self._file = -1
        try:
            # Opened once: the file stays that of this thread.
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Some containers have none.
            return

    def read(self) -> ProcessorTimes | None:
        """Times up to now; None if the kernel does not tell them."""
        if self._file < 0:
            return None
        try:
            cpu, waited, *_ = os.pread(self._file, _MOST_BYTES, 0).split()
        except (OSError, ValueError):
            return None
        return ProcessorTimes(int(cpu) * _NS, int(waited) * _NS)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
