"""Queues of training jobs for several clusters: when jobs arrive, where they may run, how fast each kind is.

Y. Li, T. Zeng, X. Zhang, J. Duan, C. Wu: TapFinger: Task Placement and Fine-Grained Resource Allocation for Edge
Machine Learning, INFOCOM 2023. Time passes in slots; a job that runs gains progress in each, by its kind and by the
CPUs and accelerators that it has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import isfinite
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.trace.record_files import read_record, write_record

__all__ = ["EdgeCluster", "JobKind", "JobQueue", "QueueArrays", "QueuedJob", "read_queue", "write_queue"]

_MOST_FIGURES, _MOST_SLOTS = 100_000_000, 10_000_000
"""Progress by kind, processors and accelerators that is held in memory, and slots of one job that are simulated."""


class EdgeCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cluster that runs jobs concurrently, each on this cluster only."""

    name: str
    cpus: int
    gpus: int


class JobKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speed of jobs of a kind."""

    progress: tuple[tuple[float, ...], ...]
    """Progress per slot, [CPUs + 1][accelerators + 1]; jobs end at 1. Amounts beyond the table count as its last row
    and column. An amount that a job cannot use fully, such as 3 accelerators for a kind that splits over 1, 2 or 4,
    counts as the best amount within it; the rest is idle."""
    ceiling: float = 0.0
    """Distance parameter of slowing progress: 0 for constant progress per slot; otherwise progress is multiplied by
    the square root of the distance to the ceiling, like a loss that falls ever slower. Above 1, so that jobs end."""
    cpus: int = 1
    """Minimum number of CPUs of a job."""
    gpus: int = 0
    """Minimum number of accelerators of a job."""


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the queue."""

    name: str
    kind: str
    arrival: int
    """First slot in which it may start."""
    clusters: tuple[int, ...] = ()
    """Indices of the clusters that may run it; empty for all."""
    pace: float = 1.0
    """Job-specific factor on the progress of its kind, hidden from schedulers."""


class QueueArrays(NamedTuple):
    """A queue as arrays, for compiled code; jobs are in order of arrival."""

    arrival: NDArray[np.int64]
    """Arrival slot of each job, [J]."""
    kind: NDArray[np.int64]
    """Index of each job's kind, [J]."""
    pace: NDArray[np.float64]
    """Job-specific factor on progress, [J]."""
    reach: NDArray[np.bool_]
    """Whether a cluster may run a job, [J, A]."""
    least: NDArray[np.int64]
    """Minimum CPUs and accelerators of each kind, [K, 2]."""
    progress: NDArray[np.float64]
    """Progress per slot, [K, processors + 1, accelerators + 1]."""
    ceiling: NDArray[np.float64]
    """Ceilings of kinds, 0 if progress is constant, [K]."""
    room: NDArray[np.int64]
    """CPUs and accelerators of each cluster, [A, 2]."""


class JobQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs of a period, and the clusters that run them.

    Raises:
        InputError: A name is unknown or given twice, a figure is out of range, a job fits no cluster that may run it;
            the message names the place.
    """

    queue: tuple[QueuedJob, ...]
    """Jobs in order of arrival."""
    kinds: dict[str, JobKind]
    clusters: tuple[EdgeCluster, ...]
    slot_s: float = 1.0
    """Seconds of a slot."""
    notes: tuple[str, ...] = ()
    """Notes on the conversion from a log."""

    def __post_init__(self) -> None:
        for fault in (*self._cluster_faults(), *self._kind_faults()):
            raise InputError(fault)
        for fault in self._job_faults():
            raise InputError(fault)

    def _cluster_faults(self) -> Iterator[str]:
        if not self.clusters or not self.queue:
            yield f"got {len(self.clusters)} clusters and {len(self.queue)} jobs; expected at least one of each"
        if not (isfinite(self.slot_s) and self.slot_s > 0):
            yield f"slot_s is {self.slot_s}; expected a finite number of seconds above 0"
        names = [cluster.name for cluster in self.clusters]
        for number, cluster in enumerate(self.clusters):
            where = f"clusters[{number}] ({cluster.name!r})"
            if not cluster.name or names.index(cluster.name) != number:
                yield f"{where}: the name is empty or given twice; give each cluster its own"
            if cluster.cpus < 1 or cluster.gpus < 0:
                yield f"{where}: has {cluster.cpus} cpus and {cluster.gpus} gpus; expected at least 1 and 0"
        cpus, gpus = (max((getattr(c, name) for c in self.clusters), default=0) for name in ("cpus", "gpus"))
        if len(self.kinds) * (cpus + 1) * (gpus + 1) > _MOST_FIGURES:
            yield (
                f"{len(self.kinds)} kinds on clusters of up to {cpus} cpus and {gpus} gpus have tables of more than "
                f"{_MOST_FIGURES:,} figures; expected coarser units or fewer kinds"
            )

    def _kind_faults(self) -> Iterator[str]:
        for name, kind in self.kinds.items():
            where = f"kinds[{name!r}]"
            widths = {len(row) for row in kind.progress}
            if len(widths) != 1 or 0 in widths:
                yield f"{where}.progress: rows have {sorted(widths)} figures; expected a table with even rows"
                continue
            if not all(isfinite(figure) and figure >= 0 for row in kind.progress for figure in row):
                yield f"{where}.progress: a figure is negative or not finite; expected at least 0"
            if not (kind.ceiling == 0 or (isfinite(kind.ceiling) and kind.ceiling > 1)):
                yield f"{where}.ceiling is {kind.ceiling}; expected 0, or more than 1 so that jobs end"
            if kind.cpus < 0 or kind.gpus < 0 or kind.cpus + kind.gpus < 1:
                yield f"{where}: starts with {kind.cpus} cpus and {kind.gpus} gpus; expected at least one of either"
            elif self._at(kind, kind.cpus, kind.gpus) <= 0:
                yield f"{where}: makes no progress with the least that it starts with; expected more than 0"

    def _job_faults(self) -> Iterator[str]:
        seen: set[str] = set()
        before = 0
        for number, job in enumerate(self.queue):
            where = f"queue[{number}] ({job.name!r})"
            if not job.name or job.name in seen:
                yield f"{where}: the name is empty or given twice; give each job its own"
            seen.add(job.name)
            if job.arrival < before:
                yield f"{where}: arrives in slot {job.arrival}; expected jobs in order of arrival, from {before} on"
            before = job.arrival
            kind = self.kinds.get(job.kind)
            if kind is None:
                yield f"{where}: kind {job.kind!r} is unknown; expected one of: {', '.join(self.kinds)}"
                continue
            if not (isfinite(job.pace) and job.pace > 0):
                yield f"{where}: pace is {job.pace}; expected a finite factor above 0"
            elif (slot := self._at(kind, kind.cpus, kind.gpus) * job.pace) * _MOST_SLOTS < 1:
                yield (
                    f"{where}: makes {slot:g} of its way in a slot; expected at least {1 / _MOST_SLOTS:g}, choose "
                    "longer slots"
                )
            wrong = [c for c in job.clusters if not 0 <= c < len(self.clusters)]
            if wrong or len(set(job.clusters)) != len(job.clusters):
                yield (
                    f"{where}: may run on clusters {list(job.clusters)}; expected different numbers of 0 to "
                    f"{len(self.clusters) - 1}"
                )
            elif not any(
                self.clusters[c].cpus >= kind.cpus and self.clusters[c].gpus >= kind.gpus
                for c in job.clusters or range(len(self.clusters))
            ):
                yield (
                    f"{where}: needs {kind.cpus} cpus and {kind.gpus} gpus, which no cluster that may run it has; give "
                    "it another cluster or a cluster more room"
                )

    @staticmethod
    def _at(kind: JobKind, cpus: int, gpus: int) -> float:
        row = kind.progress[min(cpus, len(kind.progress) - 1)]
        return row[min(gpus, len(row) - 1)]

    def arrays(self) -> QueueArrays:
        """Convert to arrays; all kinds have tables of the same size."""
        numbers = {name: number for number, name in enumerate(self.kinds)}
        kinds = list(self.kinds.values())
        cpus, gpus = (max(getattr(cluster, name) for cluster in self.clusters) for name in ("cpus", "gpus"))
        rows = max(cpus + 1, *(len(kind.progress) for kind in kinds))
        columns = max(gpus + 1, *(len(kind.progress[0]) for kind in kinds))
        progress = np.empty((len(kinds), rows, columns))
        for number, kind in enumerate(kinds):
            table = np.array(kind.progress)
            progress[number] = _usable(
                np.pad(table, ((0, rows - table.shape[0]), (0, columns - table.shape[1])), mode="edge"), kind
            )
        reach = np.ones((len(self.queue), len(self.clusters)), np.bool_)
        for number, job in enumerate(self.queue):
            if job.clusters:
                reach[number] = False
                reach[number, list(job.clusters)] = True
        return QueueArrays(
            arrival=np.array([job.arrival for job in self.queue], np.int64),
            kind=np.array([numbers[job.kind] for job in self.queue], np.int64),
            pace=np.array([job.pace for job in self.queue]),
            reach=reach,
            least=np.array([(kind.cpus, kind.gpus) for kind in kinds], np.int64),
            progress=progress,
            ceiling=np.array([kind.ceiling for kind in kinds]),
            room=np.array([(cluster.cpus, cluster.gpus) for cluster in self.clusters], np.int64),
        )


def _usable(progress: NDArray[np.float64], kind: JobKind) -> NDArray[np.float64]:
    """Progress where a job leaves idle what it cannot use."""
    enough = progress.copy()
    enough[: kind.cpus] = enough[:, : kind.gpus] = 0.0
    best = np.maximum.accumulate(np.maximum.accumulate(enough, axis=0), axis=1)
    return np.where(progress < progress[kind.cpus, kind.gpus], best, progress)


def read_queue(path: str | os.PathLike[str]) -> JobQueue:
    """Read a queue from its JSON file.

    Raises:
        InputError: The file does not exist or holds no queue; the message names the place.
    """
    return read_record(path, JobQueue, "a queue of jobs")


def write_queue(queue: JobQueue, path: str | os.PathLike[str]) -> None:
    """Write a queue atomically; `read_queue` reads it.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    write_record(queue, path)
