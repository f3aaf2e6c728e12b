"""Killing ranks at given instants while they train, and what their steps tell of it. Needs no torch.

A rank appends a line a step to a file of its own, which survives it. Times are of the monotonic clock that the
processes of a machine share; those of other machines are put on it by what is known of their clocks.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from wirewise.errors import PeerError

__all__ = [
    "Kill",
    "Killer",
    "StepLine",
    "Strikes",
    "Survived",
    "note_step",
    "read_steps",
    "step_seconds",
    "survived",
]

NOWHERE: Mapping[str, float] = MappingProxyType({})
"""Clocks of no other machines."""
_TICK_S = 0.002
_ALIVE_S = 0.5
"""A rank whose last step is not older, or not older than a few steps, trains: it may be killed."""


class StepLine(NamedTuple):
    """A step that a rank has committed."""

    step: int
    """Number of steps that are committed with it."""
    at_s: float
    pid: int
    rank: int
    host: str = ""
    """Name of the machine that the process is on."""


class Kill(NamedTuple):
    """A rank that was killed."""

    rank: int
    at_s: float
    pid: int
    clock_s: float = 0.0
    """Seconds since 1970."""


class Survived(NamedTuple):
    """What a kill cost."""

    resumed_s: float
    """Seconds until a step was committed again, whichever."""
    recovered_s: float
    """Seconds until a step was committed that had not been before."""
    repeated: int
    """Steps committed before the kill that were computed again."""


def note_step(folder: Path, rank: int, step: int) -> None:
    """Append a committed step to the file of a rank."""
    with (folder / f"steps-{rank}").open("a") as file:
        file.write(f"{step} {time.monotonic():.6f} {os.getpid()} {os.uname().nodename}\n")


def read_steps(folder: Path, rank: int, ahead_s: Mapping[str, float] = NOWHERE) -> list[StepLine]:
    """All steps that a rank has noted, in the order of time.

    Args:
        folder: Folder with the files of all ranks.
        rank: Number of the rank.
        ahead_s: Seconds by which the clocks of other machines are ahead of this one's, by name.
    """
    try:
        lines = (folder / f"steps-{rank}").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [
        StepLine(int(step), float(at_s) - ahead_s.get(host, 0.0), int(pid), rank, host)
        for step, at_s, pid, host in (line.split() for line in lines)
    ]


class Strikes:
    """Signals to processes of this machine; for use in a `with` block, as those of other machines are."""

    ahead_s: Mapping[str, float] = NOWHERE
    """Seconds by which the monotonic clocks of other machines are ahead of this one's, by name."""
    clock_ahead_s: Mapping[str, float] = NOWHERE
    """Likewise of the clocks that tell the seconds since 1970."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def strike(self, line: StepLine, number: int) -> Kill | None:
        """Send a signal to the process of a step; None: it is there no more."""
        # The instant before the signal: nothing that follows from it can come earlier.
        kill = Kill(line.rank, time.monotonic(), line.pid, time.time())
        try:
            os.kill(line.pid, number)
        except ProcessLookupError:
            return None
        return kill


class Killer:
    """Kills the process that is a rank at each instant; for use in a `with` block.

    Time counts from the first step that all ranks have committed. A kill that falls into a time in which the rank does
    not train, such as a restart, strikes as soon as it does, and those after it come as much later: the time between
    failures is time of training, whatever a way to survive takes to come back. Kills that find no training any more,
    because it has ended, are left out.

    Args:
        folder: Folder in which ranks note their steps.
        ranks: Number of ranks.
        kills: Seconds and rank of each kill.
        signal_number: Signal that is sent, SIGKILL or SIGSTOP.
        strikes: How processes are reached; by default as those of this machine.

    Raises:
        PeerError: A process could not be reached; raised at the end of the block.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        kills: Sequence[tuple[float, int]],
        signal_number: int = signal.SIGKILL,
        strikes: Strikes | None = None,
    ) -> None:
        self._folder, self._ranks, self._due, self._signal = folder, ranks, sorted(kills), signal_number
        self._strikes = strikes or Strikes()
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
        own = [line.at_s for line in steps if line.pid == steps[-1].pid]
        usual_s = statistics.median(b - a for a, b in pairwise(own)) if len(own) > 1 else 0.0
        struck = {kill.pid for kill in self.kills}
        return steps[-1].pid not in struck and time.monotonic() - steps[-1].at_s <= max(_ALIVE_S, 3 * usual_s)

    def _strike(self, rank: int) -> None:
        kill = self._strikes.strike(self._steps(rank)[-1], self._signal)
        if kill is not None:
            self.kills.append(kill)

    def _steps(self, rank: int) -> list[StepLine]:
        return read_steps(self._folder, rank, self._strikes.ahead_s)


def survived(kills: Sequence[Kill], folder: Path, ahead_s: Mapping[str, float] = NOWHERE) -> list[Survived]:
    """What each kill cost, by the steps of the process that took the place of the killed one.

    A kill after which the rank committed no new step is left out. Arguments as of `read_steps`.
    """
    found = []
    for kill in kills:
        steps = read_steps(folder, kill.rank, ahead_s)
        before = max((line.step for line in steps if line.at_s <= kill.at_s), default=0)
        after = [line for line in steps if line.at_s > kill.at_s and line.pid != kill.pid]
        new = next((line for line in after if line.step > before), None)
        if new is not None:
            repeated = max(0, before + 1 - after[0].step)
            found.append(Survived(after[0].at_s - kill.at_s, new.at_s - kill.at_s, repeated))
    return found


def step_seconds(
    steps: Sequence[StepLine],
    kills: Sequence[Kill] = (),
    first: int = 5,
    average: Callable[[Sequence[float]], float] = statistics.median,
) -> float:
    """Average seconds of a step of one process before the first kill, the first ones left out; NaN without two."""
    own = [
        line.at_s for line in steps if line.pid == steps[0].pid and not (kills and line.at_s > kills[0].at_s)
    ]
    times = [after_s - before_s for before_s, after_s in pairwise(own)]
    return average(times[min(first, len(times) // 2) :]) if times else math.nan
