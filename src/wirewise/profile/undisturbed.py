"""Detection of other work that slows down this core, which thread CPU time does not show."""

from __future__ import annotations

import time

import torch
from torch import Tensor

__all__ = ["is_undisturbed"]

_ELEMENTS = 8192
_DISTURBED = 1.1
"""Longer than this multiple of its least time, the reference shared the core with somebody."""


class _Reference:
    """A short kernel that only computes, and its least time so far."""

    values: Tensor | None = None
    least_s = float("inf")


def is_undisturbed() -> bool:
    """Whether a reference loop of 20 to 30 us runs at full speed.

    Work on the core's other hyperthread slows a kernel down, by half and more, for seconds on end, and so does a
    hypervisor that preempts the virtual CPU. The first call calibrates the full speed, in a few milliseconds.
    """
    if _Reference.values is None:
        _Reference.values = torch.full((_ELEMENTS,), 0.5)
        for _ in range(100):
            _run(_Reference.values)
    # The first run finds its values out of the caches, where a large kernel ran before.
    _run(_Reference.values)
    taken = _run(_Reference.values)
    _Reference.least_s = min(taken, _Reference.least_s)
    return taken <= _DISTURBED * _Reference.least_s


def _run(values: Tensor) -> float:
    # The clock on the wall, since the thread's own one may take off too much where the host took the processor away.
    begin = time.perf_counter()
    torch.tanh(values)
    return time.perf_counter() - begin
