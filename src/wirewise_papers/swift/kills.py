"""Fault injection: kills of ranks during training, and their cost in steps; importable without torch.

A rank appends a line per step to a separate file, which survives it. Times are on the monotonic clock shared by the
processes of a machine; those of other machines are converted by the known clock offsets.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from wirewise.errors import PeerError
from wirewise.hosts import ProcessIdentity, owner_tag

__all__ = [
    "Kill",
    "KillCost",
    "KillSignals",
    "Killer",
    "StepLine",
    "kill_costs",
    "note_step",
    "read_steps",
    "step_seconds",
]

NOWHERE: Mapping[str, float] = MappingProxyType({})
"""Empty clock offsets, without other machines."""
_TICK_S = 0.002
_ALIVE_S = 0.5
"""A rank whose last step is not older, or not older than a few steps, trains: it may be killed."""


class StepLine(NamedTuple):
    """A step that a rank has committed."""

    step: int
    """Number of steps committed so far."""
    at_s: float
    process: ProcessIdentity
    rank: int
    host: str = ""
    """Name of the process's machine."""


class Kill(NamedTuple):
    """A rank that was killed."""

    rank: int
    at_s: float
    process: ProcessIdentity
    clock_s: float = 0.0
    """Time of the kill, in seconds since 1970."""


class KillCost(NamedTuple):
    """Cost of a kill."""

    resumed_s: float
    """Seconds until any step was committed again."""
    recovered_s: float
    """Seconds until a new step was committed."""
    repeated: int
    """Number of steps committed before the kill that were recomputed."""


def note_step(folder: Path, rank: int, step: int) -> None:
    """Append a committed step to the file of a rank."""
    with (folder / f"steps-{rank}").open("a") as file:
        file.write(f"{step} {time.monotonic():.6f} {_tag_of(os.getpid())} {os.uname().nodename}\n")


def read_steps(folder: Path, rank: int, ahead_s: Mapping[str, float] = NOWHERE) -> list[StepLine]:
    """Read all recorded steps of a rank, by time.

    Args:
        folder: Folder with the files of all ranks.
        rank: Index of the rank.
        ahead_s: Clock offset of other machines relative to this one, by name, in seconds.
    """
    try:
        lines = (folder / f"steps-{rank}").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    found = []
    for step, at_s, tag, host in (line.split() for line in lines):
        process = ProcessIdentity.parse(tag)
        assert process is not None
        found.append(StepLine(int(step), float(at_s) - ahead_s.get(host, 0.0), process, rank, host))
    return found


@cache
def _tag_of(pid: int) -> str:
    """Tag of this process, whose id it is: a fork has another."""
    return owner_tag()


class KillSignals:
    """Sender of signals to processes of this machine; context manager."""

    ahead_s: Mapping[str, float] = NOWHERE
    """Offset of other machines' monotonic clocks, by name, in seconds ahead of this machine's."""
    clock_ahead_s: Mapping[str, float] = NOWHERE
    """Offset of their Unix time, likewise."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def send(self, line: StepLine, number: int) -> Kill | None:
        """Send a signal to the process of a step; None if the process is gone."""
        # The instant before the signal: nothing that follows from it can come earlier.
        kill = Kill(line.rank, time.monotonic(), line.process, time.time())
        return kill if line.process.signal(number) else None


class Killer:
    """Context manager that kills the current process of a rank at each given time.

    Time counts from the first step that all ranks have committed. A kill that is due while the rank does not train,
    such as during a restart, is executed as soon as it does, and later kills are delayed equally: the time between
    failures is training time, independent of the recovery time of a method. Kills due after the end of the training
    are omitted.

    Args:
        folder: Folder in which ranks note their steps.
        ranks: Number of ranks.
        kills: Seconds and rank of each kill.
        signal_number: Signal that is sent, SIGKILL or SIGSTOP.
        sender: Sender of signals. Defaults to that for this machine.

    Raises:
        PeerError: A process could not be reached; raised at the end of the block.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        kills: Sequence[tuple[float, int]],
        signal_number: int = signal.SIGKILL,
        sender: KillSignals | None = None,
    ) -> None:
        self._folder, self._ranks, self._due, self._signal = folder, ranks, sorted(kills), signal_number
        self._sender = sender or KillSignals()
        self.kills: list[Kill] = []
        self.spared = 0
        """Kills that were left out."""
        self._ended = threading.Event()
        self._error: PeerError | None = None
        self._thread = threading.Thread(target=self._run, name="wirewise-killer", daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._strike_all()
        except PeerError as error:
            self._error = error

    def _strike_all(self) -> None:
        while not all((self._folder / f"steps-{rank}").exists() for rank in range(self._ranks)):
            if self._ended.wait(_TICK_S):
                return
        started_s = time.monotonic()
        for number, (after_s, rank) in enumerate(self._due):
            while time.monotonic() < started_s + after_s or not self._trains(rank):
                if self._ended.wait(_TICK_S):
                    self.spared = len(self._due) - number
                    return
            started_s = time.monotonic() - after_s
            self._strike(rank)

    def _trains(self, rank: int) -> bool:
        """Whether the newest process of a rank has committed a step lately, which the last kill did not strike."""
        steps = self._steps(rank)
        own = [line.at_s for line in steps if line.process == steps[-1].process]
        usual_s = statistics.median(b - a for a, b in pairwise(own)) if len(own) > 1 else 0.0
        struck = {kill.process for kill in self.kills}
        return steps[-1].process not in struck and time.monotonic() - steps[-1].at_s <= max(
            _ALIVE_S, 3 * usual_s
        )

    def _strike(self, rank: int) -> None:
        kill = self._sender.send(self._steps(rank)[-1], self._signal)
        if kill is not None:
            self.kills.append(kill)

    def _steps(self, rank: int) -> list[StepLine]:
        return read_steps(self._folder, rank, self._sender.ahead_s)


def kill_costs(kills: Sequence[Kill], folder: Path, ahead_s: Mapping[str, float] = NOWHERE) -> list[KillCost]:
    """Cost of each kill, by the steps of the replacement process.

    A kill after which the rank committed no new step is left out. Arguments as in `read_steps`.
    """
    found = []
    for kill in kills:
        steps = read_steps(folder, kill.rank, ahead_s)
        before = max((line.step for line in steps if line.at_s <= kill.at_s), default=0)
        after = [line for line in steps if line.at_s > kill.at_s and line.process != kill.process]
        new = next((line for line in after if line.step > before), None)
        if new is not None:
            repeated = max(0, before + 1 - after[0].step)
            found.append(KillCost(after[0].at_s - kill.at_s, new.at_s - kill.at_s, repeated))
    return found


def step_seconds(
    steps: Sequence[StepLine],
    kills: Sequence[Kill] = (),
    first: int = 5,
    average: Callable[[Sequence[float]], float] = statistics.median,
) -> float:
    """Average step time of one process before the first kill, without the first steps; NaN without two steps."""
    own = [
        line.at_s
        for line in steps
        if line.process == steps[0].process and not (kills and line.at_s > kills[0].at_s)
    ]
    times = [after_s - before_s for before_s, after_s in pairwise(own)]
    return average(times[min(first, len(times) // 2) :]) if times else math.nan
