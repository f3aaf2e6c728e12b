"""Ranks as threads: each owns a gloo process group over one in-memory store; a job starts in milliseconds."""

from __future__ import annotations

import datetime
import gc
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def run_ranks_as_threads(
    world_size: int, fn: Callable[..., T], *args: Any, timeout_s: float = 60.0
) -> list[T]:
    """Call `fn(rank, group, store, *args)` on every rank and return the results in rank order.

    The first error of any rank is raised again, with its rank; a job that is late is an error too.
    """
    store = dist.HashStore()
    results: list[Any] = [None] * world_size
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank] = fn(rank, _group(store, rank, world_size, timeout_s), store, *args)
        except BaseException as error:
            errors.append((rank, error))

    # Daemons: a rank that waits for one that failed must not keep pytest from ending.
    threads = [
        threading.Thread(target=run, args=(r,), name=f"rank-{r}", daemon=True) for r in range(world_size)
    ]
    # Python may collect wherever it allocates, also while torch holds a lock, say that of its random numbers. A process
    # group that is freed there lets go of the interpreter, and a rank that then waits for that lock holds both up.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for thread in threads:
            thread.start()
        _join(threads, errors, timeout_s)
    finally:
        if collecting:
            gc.enable()
    if errors:
        rank, error = errors[0]
        error.add_note(f"raised on rank {rank} of {world_size}")
        raise error
    late = [t.name for t in threads if t.is_alive()]
    if late:
        raise TimeoutError(f"{', '.join(late)} of {world_size} did not end within {timeout_s:g} s")
    return results


def _join(threads: list[threading.Thread], errors: list[Any], timeout_s: float) -> None:
    """Wait for all threads, or for the first error, or until time is up."""
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        while thread.is_alive() and not errors and time.monotonic() < deadline:
            thread.join(0.02)


def _group(store: dist.Store, rank: int, world_size: int, timeout_s: float) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=timeout_s)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, world_size, options)
