"""Points in time: read at once on the CPU, events on the stream of a CUDA device."""

from __future__ import annotations

import time
from typing import Protocol

import torch

__all__ = ["Clock", "DeviceClock", "HostClock", "Mark", "clock_of"]

Mark = float | torch.cuda.Event
"""`time.perf_counter` in seconds, or an event whose time is known once the device got there."""


class Clock(Protocol):
    """Where marks come from."""

    def mark(self) -> Mark:
        """Mark of the present moment."""
        ...

    def seconds(self, mark: Mark) -> float | None:
        """A mark as `time.perf_counter` in s; None: the device has not got there yet."""
        ...


class HostClock:
    """What runs on the CPU is over when the call is."""

    @staticmethod
    def mark() -> float:
        """Mark of the present moment."""
        return time.perf_counter()

    @staticmethod
    def seconds(mark: Mark) -> float | None:
        """The mark itself."""
        return mark if isinstance(mark, float) else None


class DeviceClock:
    """What runs on a device is over when its stream gets there: marks are events on the current stream.

    Args:
        device: The CUDA device of this rank.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self._first = torch.cuda.Event(enable_timing=True)
        self._first.record(torch.cuda.current_stream(device))
        self._first.synchronize()
        self._first_s = time.perf_counter()

    @staticmethod
    def mark() -> torch.cuda.Event:
        """Now, on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: Mark) -> float | None:
        """Seconds of the event, once it happened."""
        if isinstance(mark, float):
            return mark
        return self._first_s + 1e-3 * self._first.elapsed_time(mark) if mark.query() else None


def clock_of(device: torch.device) -> Clock:
    """The clock for work on a device."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
