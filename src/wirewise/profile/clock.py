"""Time marks: read immediately on the CPU, events on the stream of a CUDA device."""

from __future__ import annotations

import time
from typing import Protocol

import torch

__all__ = ["Clock", "DeviceClock", "HostClock", "Mark", "clock_of"]

Mark = float | torch.cuda.Event
"""`time.perf_counter` in seconds, or an event whose time is known once the device has reached it."""


class Clock(Protocol):
    """Source of time marks."""

    def mark(self) -> Mark:
        """Mark the current time."""
        ...

    def seconds(self, mark: Mark) -> float | None:
        """Convert a mark to `time.perf_counter`, in seconds. None if the device has not reached it."""
        ...


class HostClock:
    """Clock of a CPU, where work is done when the call returns."""

    @staticmethod
    def mark() -> float:
        """Mark the current time."""
        return time.perf_counter()

    @staticmethod
    def seconds(mark: Mark) -> float | None:
        """The mark itself."""
        return mark if isinstance(mark, float) else None


class DeviceClock:
    """Clock of a device, where work is done when its stream reaches it: marks are events on the current stream.

    Args:
        device: CUDA device of this rank.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self._first = torch.cuda.Event(enable_timing=True)
        self._first.record(torch.cuda.current_stream(device))
        self._first.synchronize()
        self._first_s = time.perf_counter()

    @staticmethod
    def mark() -> torch.cuda.Event:
        """Record an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: Mark) -> float | None:
        """Time of the event in seconds, once it has happened."""
        if isinstance(mark, float):
            return mark
        return self._first_s + 1e-3 * self._first.elapsed_time(mark) if mark.query() else None


def clock_of(device: torch.device) -> Clock:
    """Clock for work on a device."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
