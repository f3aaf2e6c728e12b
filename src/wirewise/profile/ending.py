"""Ends a rank, in the middle of its script too, when all that was wanted of it is known."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import torch.distributed as dist

__all__ = ["end_process"]

_GOODBYE_S = 10.0


def end_process(last: Callable[[], object] = lambda: None) -> NoReturn:
    """End this process with exit code 0 and its helpers with it, once the other ranks came here too.

    The interpreter does not shut down: a thread of torch that wakes up meanwhile can abort the process.

    Args:
        last: Called when the others are there.
    """
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(_GOODBYE_S)
    _leave_group()
    last()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _leave_group() -> None:
    """Wait until all ranks are done, so that none sees another's end as a fault; not for ever."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    waiting, until = dist.barrier(async_op=True), time.monotonic() + _GOODBYE_S
    while waiting is not None and not waiting.is_completed() and time.monotonic() < until:
        time.sleep(0.002)
    if waiting is None or waiting.is_completed():
        dist.destroy_process_group()
