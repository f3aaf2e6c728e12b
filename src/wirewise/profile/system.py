"""System metrics during training: CPU load of a rank and its host, utilisation and clock of its device."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

__all__ = ["SystemFigures", "SystemReader"]


class SystemFigures(NamedTuple):
    """Means since the last reading; NaN if unknown."""

    processors: float
    """CPUs that the process kept busy, without its children."""
    host_use: float
    """CPU utilization of the host; needs psutil."""
    device_use: float
    """GPU utilization over the last second or less; needs nvidia-ml-py."""
    device_clock_hz: float
    """Current clock rate of the GPU; needs nvidia-ml-py."""


class SystemReader:
    """Reader of metrics of this process, its host and its device; missing packages leave theirs unknown.

    Args:
        device: Device of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._psutil: Any = None
        if find_spec("psutil") is not None:
            self._psutil = import_module("psutil")
            # The first call has nothing to compare with.
            self._psutil.cpu_percent()
        self._device = device if device.type == "cuda" and find_spec("pynvml") is not None else None
        self._read_s, self._used_s = time.perf_counter(), time.process_time()

    def read(self) -> SystemFigures:
        """Metrics since the last call."""
        now_s, used_s = time.perf_counter(), time.process_time()
        wall_s = now_s - self._read_s
        processors = (used_s - self._used_s) / wall_s if wall_s > 0 else math.nan
        self._read_s, self._used_s = now_s, used_s
        host = self._psutil.cpu_percent() / 100 if self._psutil is not None else math.nan
        return SystemFigures(processors, host, *self._of_device())

    def _of_device(self) -> tuple[float, float]:
        if self._device is not None:
            # A driver that refuses is as one that is not there.
            with suppress(Exception):
                return torch.cuda.utilization(self._device) / 100, torch.cuda.clock_rate(self._device) * 1e6
        return math.nan, math.nan
