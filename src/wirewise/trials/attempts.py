"""Lifecycle of queued jobs, common to all launchers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from wirewise.errors import LabError
from wirewise.files import make_folder
from wirewise.runtime.jobs.launcher import JobReport, JobState
from wirewise.runtime.jobs.training import Progress, ProgressReader
from wirewise.trials.last_words import error_line

__all__ = ["Attempt", "Attempts", "JobCommand", "JobEnd", "last_line"]

_UNFINISHED = "all ranks ended well, and none has noted that the job is done"


class JobCommand(NamedTuple):
    """Command of each rank of a job."""

    target: str
    """Function called with the folder, "module:function" or "/path/FILE.py:function"; it calls `train_resumably`."""
    folder: Path
    """Folder of the job, for states, progress and a log per rank."""
    ranks: tuple[int, ...] = ()
    """Possible numbers of ranks, ascending; the job uses the largest that its accelerators allow. Defaults to any."""

    def ranks_for(self, gpus: int) -> int:
        """Number of ranks of the job on n accelerators."""
        return max([n for n in self.ranks if n <= gpus], default=max(gpus, 1))


@dataclass(kw_only=True)
class Attempt:
    """One run of a job, from start to end."""

    cluster: int
    reader: ProgressReader
    asked: bool = False
    """Whether a stop was requested."""
    last: str = ""
    """Last recorded event: "begin", "done" or "stopped"."""


class JobEnd(NamedTuple):
    """Exit state of the ranks of an attempt."""

    cause: str
    """Description of the failure; empty if all ranks succeeded."""
    at_s: float
    lost: bool = False
    """Whether the ranks died with their host, so that nothing was saved, even if a stop was requested."""


A = TypeVar("A", bound=Attempt)


class Attempts(ABC, Generic[A]):
    """Jobs by name, and the running ones, each on one cluster; the states of a `JobLauncher`.

    Args:
        jobs: Commands by name of the job.
    """

    def __init__(self, jobs: Mapping[str, JobCommand]) -> None:
        self._jobs = dict(jobs)
        self._attempts: dict[str, A] = {}
        """Jobs that run, by name."""

    def add(self, job: str, command: JobCommand) -> None:
        """Register a further job."""
        self._jobs[job] = command

    def reports(self) -> list[JobReport]:
        """Status updates of all jobs that were running at the last call; see `JobLauncher.reports`."""
        self._refresh()
        found = []
        for job, attempt in list(self._attempts.items()):
            end = self._end(job, attempt)
            # Read after the end was heard of, so that no line is missed.
            progress = self._progress(attempt)
            attempt.last = next((line.event for line in reversed(progress) if line.event), attempt.last)
            state = _state(attempt, end)
            if end is not None:
                self._forget(job)
            words = (end.cause or _UNFINISHED) if end is not None and state == "failed" else ""
            found.append(JobReport(job, state, end.at_s if end else time.monotonic(), progress, words))
        return found

    @abstractmethod
    def _refresh(self) -> None:
        """Take in what is known of the jobs by now."""

    @abstractmethod
    def _end(self, job: str, attempt: A) -> JobEnd | None:
        """How an attempt ended; None while it runs."""

    def _progress(self, attempt: A) -> tuple[Progress, ...]:
        return attempt.reader.read()

    def _forget(self, job: str) -> None:
        del self._attempts[job]

    def _prepare(self, job: str, cpus: int, gpus: int) -> tuple[JobCommand, ProgressReader]:
        """Command of a job that is to be started, whose folder exists, and a reader of the progress from now on.

        Raises:
            LabError: It runs already, is unknown, or has no processors.
        """
        if job in self._attempts or job not in self._jobs or cpus < 1 or gpus < 0:
            why = "runs already" if job in self._attempts else f"is to have {cpus} cpus and {gpus} gpus"
            raise LabError(f"job {job!r} {why}; expected one of the known jobs, with at least one processor")
        command = self._jobs[job]
        command = command._replace(folder=make_folder(command.folder).resolve())
        reader = ProgressReader(command.folder)
        reader.read()
        return command, reader


def last_line(folder: Path, ranks: Iterable[int]) -> str:
    """Most informative of the last lines of some ranks; empty if none."""
    for rank in ranks:
        log = folder / f"rank-{rank}.log"
        if log.exists() and (line := error_line(log.read_text(errors="replace").splitlines())):
            return line
    return ""


def _state(attempt: Attempt, end: JobEnd | None) -> JobState:
    if end is None:
        return "running"
    if not end.cause and attempt.last == "done":
        return "done"
    return "stopped" if attempt.asked and not end.lost else "failed"
