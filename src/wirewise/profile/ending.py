"""End of a rank, possibly in the middle of its script, once everything requested of it is known."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import NoReturn

import torch.distributed as dist

from wirewise.hosts import exit_at_once

__all__ = ["end_process"]

_GOODBYE_S = 10.0


def end_process(last: Callable[[], object] = lambda: None) -> NoReturn:
    """Exit this process with code 0, and its helpers, once the other ranks have arrived here too.

    The interpreter is not finalised, as a torch thread that wakes up meanwhile could abort the process.

    Args:
        last: Called when the other ranks have arrived.
    """
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(_GOODBYE_S)
    _leave_group()
    last()
    exit_at_once(0)


def _leave_group() -> None:
    """Wait until all ranks are done, so that none sees another's end as a fault; not for ever."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    waiting, until = dist.barrier(async_op=True), time.monotonic() + _GOODBYE_S
    while waiting is not None and not waiting.is_completed() and time.monotonic() < until:
        time.sleep(0.002)
    if waiting is None or waiting.is_completed():
        dist.destroy_process_group()
