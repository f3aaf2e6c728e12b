"""Timing of the steps of an unmodified script, with or without changed arguments, in each of its ranks."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from wirewise.decoding import decode_json
from wirewise.errors import PeerError
from wirewise.files import write_json
from wirewise.profile.ending import end_process
from wirewise.trials.inside.changing import Calls, change
from wirewise.trials.inside.tasks import Restart

__all__ = ["RestartResult", "read_results", "result_file", "time_steps"]


class RestartResult(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one rank, or of the slowest rank in each step."""

    ranks: int
    seconds: list[float]
    """Seconds of each step, which ends with the optimizer that steps first."""
    workers: int | None = None
    """Number of workers of the last DataLoader iterated. None if there is none."""
    wrapper: dict[str, bool | int | float | None] = {}
    """Arguments of DistributedDataParallel. Empty if no model is wrapped."""
    changed: tuple[str, ...] = ()
    """Changed arguments of the script's calls."""
    refused: dict[str, str] = {}
    """Reasons why arguments were left unchanged."""


def result_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """File for the result of a rank."""
    return Path(folder) / f"rank-{rank}.json"


def read_results(folder: str | os.PathLike[str]) -> RestartResult:
    """Merge the results of all ranks: time of the slowest rank in each step.

    Raises:
        PeerError: A rank left no result.
    """
    first = decode_json(result_file(folder, 0).read_bytes(), RestartResult)
    files = [result_file(folder, rank) for rank in range(first.ranks)]
    if missing := [rank for rank, file in enumerate(files) if not file.exists()]:
        raise PeerError(
            f"rank {missing[0]} of {first.ranks} left no {files[missing[0]]}; expected a folder that all ranks share"
        )
    rows = [decode_json(file.read_bytes(), RestartResult).seconds for file in files]
    return msgspec.structs.replace(first, seconds=np.max(rows, axis=0).tolist())


def time_steps(task: Restart) -> None:
    """Change arguments of the script, time its steps after the warm-up, save the times, and end it."""
    run = _Run(task, change(task.arguments))
    register_optimizer_step_post_hook(lambda optimizer, *_: run.after_step(optimizer))


class _Run:
    """One rank of the script."""

    def __init__(self, task: Restart, calls: Calls) -> None:
        self.task, self.calls = task, calls
        self.ends: list[float] = []
        self._optimizer: Any = None

    def after_step(self, optimizer: Any) -> None:
        """Take the end of a step; after the last one write and end."""
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        self.ends.append(time.perf_counter())
        if len(self.ends) > self.task.warmup + self.task.steps:
            self.write()
            end_process()

    def write(self) -> None:
        """Write the result of this rank."""
        joined = dist.is_available() and dist.is_initialized()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        seconds = [after - before for before, after in pairwise(self.ends[-self.task.steps - 1 :])]
        calls = self.calls
        found = RestartResult(
            ranks=ranks,
            seconds=seconds,
            workers=calls.workers,
            wrapper=calls.wrapper,
            changed=tuple(sorted(calls.changed)),
            refused=calls.refused,
        )
        write_json(result_file(self.task.folder, rank), found)
