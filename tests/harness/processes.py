"""Ranks as processes: forked from a server that has loaded what they import; a job starts in a second."""

from __future__ import annotations

import datetime
import multiprocessing
import multiprocessing.connection
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_PRELOAD = [
    "numba", "torch.distributed", "torch._dynamo", "pytest", "highspy", "pymetis",
    "wirewise.codec", "wirewise.runtime.recovery.protection", "wirewise.runtime.recovery.pipelines",
]  # fmt: skip
"""What ranks of most tests import: a second of computing for each of them otherwise."""


class RankError(RuntimeError):
    """A rank raised something; its traceback is the message."""


def start_server() -> None:
    """Start the server that all ranks are forked from; whoever is first to need it could not load less then."""
    _SERVER.set_forkserver_preload(_PRELOAD)
    forkserver.ensure_running()


def run_ranks_as_processes(
    world_size: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 90.0
) -> list[Any]:
    """Call `fn(rank, *args)` in `world_size` processes of one default gloo group; results in rank order.

    `fn` must be a module's function, and its arguments and results are pickled.

    Raises:
        RankError: A rank raised; the message names it and holds its traceback.
        ChildProcessError: A rank died without a word; the message names it and its exit code.
        TimeoutError: Ranks did not end in time; the message names them. In every case no process is left.
    """
    with tempfile.TemporaryDirectory(prefix="wirewise-ranks-") as folder:
        jobs = [
            _start(rank, world_size, Path(folder) / "store", fn, args, timeout_s)
            for rank in range(world_size)
        ]
        try:
            return _collect(jobs, timeout_s)
        finally:
            for process, pipe in jobs:
                process.kill()
                process.join()
                process.close()
                pipe.close()


def _start(rank: int, world_size: int, store: Path, fn: Any, args: Any, timeout_s: float) -> tuple[Any, Any]:
    ours, theirs = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(
        target=_rank, args=(rank, world_size, str(store), fn, args, timeout_s, theirs), name=f"rank-{rank}"
    )
    process.start()
    # Only the rank holds the other end now, so that its death ends our read.
    theirs.close()
    return process, ours


def _rank(rank: int, world_size: int, store: str, fn: Any, args: Any, timeout_s: float, answer: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        # Pickled here, so that a result that cannot be is this rank's error.
        message = pickle.dumps(("result", fn(rank, *args)))
        dist.destroy_process_group()
    except BaseException:
        message = pickle.dumps(("error", traceback.format_exc()))
    answer.send_bytes(message)
    answer.close()


def _collect(jobs: list[tuple[Any, Any]], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(jobs)}
    deadline = time.monotonic() + timeout_s
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(str(rank) for rank in waiting.values())
            raise TimeoutError(f"ranks {late} of {len(jobs)} did not end within {timeout_s:g} s")
        for pipe in ready:
            rank = waiting.pop(pipe)
            results[rank] = _receive(rank, len(jobs), *jobs[rank])
    return [results[rank] for rank in range(len(jobs))]


def _receive(rank: int, world_size: int, process: Any, pipe: Any) -> Any:
    try:
        kind, value = pickle.loads(pipe.recv_bytes())
    except EOFError:
        process.join(5.0)
        raise ChildProcessError(f"rank {rank} of {world_size} died, exit code {process.exitcode}") from None
    if kind == "error":
        raise RankError(f"rank {rank} of {world_size} raised\n{value}")
    return value
