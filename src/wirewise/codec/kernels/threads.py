"""Split the rows of a large job over a few threads; kernels release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

__all__ = ["split"]

_MIN_BYTES = 1 << 20
"""A thread gets at least this much: below, handing over costs more than it gains."""

_pools: dict[int, ThreadPoolExecutor] = {}

# Threads do not survive a fork, so a child starts without pools.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def split(
    kernel: Callable[..., Any], arguments: tuple[Any, ...], count: int, row_size: int, *, serial: bool = False
) -> list[Any]:
    """Call `kernel(*arguments, lo, hi)` on ranges that cover 0..count; results in order of the ranges.

    Args:
        kernel: Function without the GIL whose rows are independent.
        arguments: Its arguments before the range.
        count: Number of rows.
        row_size: Bytes that a row moves, to judge whether threads pay.
        serial: Keep one thread.
    """
    parts = 1 if serial else max(1, min(torch.get_num_threads(), count * row_size // _MIN_BYTES))
    if parts == 1:
        return [kernel(*arguments, 0, count)]
    if parts not in _pools:
        # Another thread may get here too: the first pool stays, and one without jobs has started no threads.
        _pools.setdefault(parts, ThreadPoolExecutor(parts, thread_name_prefix="wirewise-codec"))
    pool = _pools[parts]
    edges = [count * part // parts for part in range(parts + 1)]
    jobs = [pool.submit(kernel, *arguments, edges[part], edges[part + 1]) for part in range(parts)]
    return [job.result() for job in jobs]
