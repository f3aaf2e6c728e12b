"""Training that can be stopped at any step and resumed with another number of ranks.

Its state is stored in part files that do not depend on the number of ranks. The newest two states are kept: if one is
torn, the previous one is used. SIGTERM on any rank makes all ranks finish the same step, save and exit.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import torch.distributed as dist

from wirewise.errors import InputError
from wirewise.files import make_folder
from wirewise.runtime.startup import start_group
from wirewise.runtime.state_files import read_state, write_state
from wirewise.runtime.transport import Transport, transport_of
from wirewise.runtime.trees import Tree

__all__ = [
    "PROGRESS",
    "Progress",
    "ProgressReader",
    "ResumableTraining",
    "SharedStates",
    "install_stop_handler",
    "train_resumably",
]

PROGRESS = "progress.jsonl"
"""File in the folder of a job with a line for each step, and for each begin and end."""
_KEPT = 2
_NAME = re.compile(r"step-(\d+)\.(.+)\.state")

_stop = threading.Event()


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress record of a training."""

    step: int
    """Number of completed steps."""
    at_s: float
    """Time on the machine's monotonic clock."""
    event: str = ""
    """"begin", "done" or "stopped"; empty for a step."""
    note: str = ""
    """Note for the user, such as a torn checkpoint."""


class ResumableTraining(Protocol):
    """Training on several ranks whose state can be loaded by another number of ranks."""

    parts: Sequence[str]
    """Names of all parts of the state, the same on all ranks and for all numbers of ranks."""

    def step(self, number: int) -> None:
        """Run a step, together with all ranks."""

    def state(self) -> Mapping[str, Tree]:
        """Parts that this rank writes; all ranks together write each part once."""

    def load(self, parts: Mapping[str, Tree]) -> None:
        """Load a state with all of its parts."""

    def close(self) -> None:
        """Release threads and groups."""


class SharedStates:
    """States of a job on a shared file system.

    Args:
        folder: Folder of the files; created if missing.
        parts: Names of all parts.
    """

    def __init__(self, folder: Path, parts: Sequence[str]) -> None:
        self._folder, self._parts = make_folder(folder), sorted(parts)

    def write(self, step: int, parts: Mapping[str, Tree]) -> None:
        """Write the parts of this rank durably."""
        for name, tree in parts.items():
            write_state(self._path(step, name), tree)

    def read(self, step: int) -> dict[str, Tree]:
        """Read all parts of a step.

        Raises:
            InputError: A part is missing or torn.
        """
        return {name: read_state(self._path(step, name)) for name in self._parts}

    def newest(self) -> tuple[int, list[str]]:
        """Newest step with all parts intact, 0 if there is none; and the faults of later ones."""
        wrong: list[str] = []
        for step in reversed(self.steps()):
            try:
                self.read(step)
            except InputError as error:
                wrong.append(str(error).split(". ")[0])
            else:
                return step, wrong
        return 0, wrong

    def steps(self) -> list[int]:
        """Steps with all their parts, ascending."""
        found: dict[int, set[str]] = {}
        for path in self._folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                found.setdefault(int(match[1]), set()).add(match[2])
        return sorted(step for step, parts in found.items() if parts >= set(self._parts))

    def prune(self, after: int) -> None:
        """Remove all but the newest two states, and those of steps after `after`, which were superseded."""
        kept = [step for step in self.steps() if step <= after][-_KEPT:]
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and int(match[1]) not in kept:
                path.unlink(missing_ok=True)

    def _path(self, step: int, part: str) -> Path:
        return self._folder / f"step-{step}.{part}.state"


class ProgressReader:
    """Incremental reader of a job's progress records."""

    def __init__(self, folder: Path) -> None:
        self._path, self._place = folder / PROGRESS, 0

    def read(self) -> tuple[Progress, ...]:
        """Read all complete new records; malformed ones are skipped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                found = file.read()
        except FileNotFoundError:
            return ()
        whole = found[: found.rfind(b"\n") + 1]
        self._place += len(whole)
        lines = []
        for line in whole.splitlines():
            # A full disk may have cut one.
            with suppress(msgspec.MsgspecError):
                lines.append(msgspec.json.decode(line, type=Progress))
        return tuple(lines)


def install_stop_handler() -> None:
    """Make SIGTERM request a stop at the end of a step instead of ending this process; call it in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())


def train_resumably(
    build: Callable[[Transport], ResumableTraining],
    folder: Path,
    *,
    steps: int,
    every_s: float = 10.0,
    timeout_s: float = 60.0,
) -> bool:
    """Train as one rank of a job, from the last saved state, to the end or until SIGTERM.

    Args:
        build: Function that makes the training of this rank.
        folder: Folder of the job, for states and progress.
        steps: Number of steps of the whole job.
        every_s: Seconds between two saved states.
        timeout_s: Seconds to wait for other ranks, to join and to answer.

    Returns:
        True if the last step was done.

    Raises:
        PeerError: A rank is dead or hung.
    """
    install_stop_handler()
    start_group(timeout_s)
    transport = transport_of(timeout_s=timeout_s)
    training = build(transport)
    states = SharedStates(folder / "states", training.parts)
    step = _restored(training, states, transport, folder)
    saved_s = time.monotonic()
    stopped = _stop.is_set()
    while step < steps:
        # SIGTERM reaches ranks at different steps, and the state is saved at one that all have done.
        wishes = [float(_stop.is_set()), time.monotonic() - saved_s]
        stop, since_s = transport.slowest(wishes, f"whether to stop before step {step}").tolist()
        stopped = bool(stop)
        if stopped or since_s > every_s:
            _save(training, states, transport, step)
            saved_s = time.monotonic()
        if stopped:
            break
        training.step(step)
        step += 1
        if transport.rank == 0:
            _note(folder, Progress(step, time.monotonic()))
    if step == steps:
        stopped = False
        _save(training, states, transport, step)
    if transport.rank == 0:
        _note(folder, Progress(step, time.monotonic(), "stopped" if stopped else "done"))
    training.close()
    transport.barrier("the end of the job")
    transport.close()
    dist.destroy_process_group()
    return not stopped


def _restored(training: ResumableTraining, states: SharedStates, transport: Transport, folder: Path) -> int:
    """Step that the training is at, after the newest whole state was loaded on all ranks."""
    newest, wrong = states.newest() if transport.rank == 0 else (0, [])
    step = int(transport.from_first(str(newest).encode(), "the step of the newest state"))
    if step:
        training.load(states.read(step))
    if transport.rank == 0:
        note = f"{'; '.join(wrong)}; it resumes from step {step}" if wrong else ""
        _note(folder, Progress(step, time.monotonic(), "begin", note))
    return step


def _save(training: ResumableTraining, states: SharedStates, transport: Transport, step: int) -> None:
    states.write(step, training.state())
    transport.barrier(f"the state of step {step}")
    if transport.rank == 0:
        states.prune(after=step)


def _note(folder: Path, line: Progress) -> None:
    # One write of a short line: a rank that is killed leaves no half of it before the next one.
    handle = os.open(folder / PROGRESS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(handle)
