"""Named points of a step and of a recovery, at which tests and `wirewise lab run --fault` inject faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from wirewise.decoding import decode_json

__all__ = ["FAULTS", "POINTS", "InjectedFault", "announce_position", "listen", "notify_point"]

FAULTS = "WIREWISE_FAULTS"
"""Environment variable with the faults to inject, a JSON list of `InjectedFault`."""

POINTS = {
    "batch": "a batch was drawn, before the forward pass",
    "forward": "the first module of the model begins its forward pass",
    "backward": "back-propagation begins, before any bucket is reduced",
    "bucket": "the gradient of this bucket is about to be reduced",
    "reduced": "all buckets are reduced",
    "update": "this parameter of the optimizer's update is about to change",
    "commit": "the update is whole, before the step is committed",
    "committed": "the step is committed",
    "sealed": "the script's code after the update is done, and its changes are part of the step",
    "checkpoint": "a checkpoint is being written",
    "log": "a log is being written",
    "fault": "a recovery begins: a failure was noticed",
    "regroup": "the new process group is about to be joined",
    "connect": "all ranks of the new process group are there, before they connect",
    "decide": "all records are known, before any state changes",
    "restore": "the state is about to be restored or copied; index 1: a pipeline that lacks logs goes back",
    "resume": "the state is restored, before training goes on",
}
"""Meaning of each point; "this" marks the points with an index."""


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """Fault injected at a point."""

    act: Literal["kill", "stop"]
    """Signal that a rank sends to itself, SIGKILL or SIGSTOP."""
    rank: int
    point: str
    index: int | None = None
    """Index at which it is injected. None for any."""
    step: int | None = None
    """Step in which it is injected, counted from 0. None for any."""
    claim: str
    """File created when the fault is injected, with the seconds since 1970, the rank and the process id; it keeps the
    fault from being injected again, also in a replacement process."""


_listener: Callable[[str, int], None] | None = None
_place = (0, 0)


def notify_point(point: str, index: int = 0) -> None:
    """Notify listeners that this process has reached a point; free if there are none."""
    if _listener is not None:
        _listener(point, index)


def listen(listener: Callable[[str, int], None] | None) -> None:
    """Call a function at every point with its name and index; None removes it."""
    global _listener
    _listener = listener


def announce_position(rank: int, step: int) -> None:
    """Announce the rank of this process and the current step, which arms faults from the environment."""
    global _place
    _place = rank, step
    if _listener is None and os.environ.get(FAULTS):
        listen(_Faults(os.environ[FAULTS]))


class _Faults:
    """Executes the faults of the environment."""

    def __init__(self, text: str) -> None:
        self._faults = decode_json(text.encode(), list[InjectedFault])

    def __call__(self, point: str, index: int) -> None:
        rank, step = _place
        for fault in self._faults:
            wanted = (fault.rank, fault.point, fault.index, fault.step)
            here = (rank, point, index, step)
            if all(one is None or one == other for one, other in zip(wanted, here, strict=True)):
                self._carry_out(fault)

    def _carry_out(self, fault: InjectedFault) -> None:
        try:
            with Path(fault.claim).open("x") as file:
                file.write(f"{time.time()!r} {fault.rank} {os.getpid()}\n")
        except FileExistsError:
            return
        signal.raise_signal(signal.SIGKILL if fault.act == "kill" else signal.SIGSTOP)
