"""What queues of training jobs report, simulated and carried out."""

from __future__ import annotations

import msgspec

__all__ = [
    "ExecutedJob",
    "ExecutedQueue",
    "ExecutedShare",
    "JobsRun",
    "QueueMoment",
    "RealQueue",
    "SchedulerRecord",
]


class ExecutedShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a job had of a cluster for a time."""

    cluster: int
    cpus: int
    gpus: int
    start_s: float
    """Seconds since the first slot of the queue."""
    end_s: float


class ExecutedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a queue as it ran; seconds count from the first slot."""

    name: str
    kind: str
    steps: int
    arrival_s: float
    ended_s: float
    """When its last process was gone."""
    shares: tuple[ExecutedShare, ...]
    """What it had, in order of time; several: it was resized, moved, stopped for a while or failed."""
    failures: tuple[str, ...] = ()
    """Last words of each failure."""
    words: str = ""
    """Why it was given up; nothing: it was not."""

    @property
    def completion_s(self) -> float:
        """Seconds from arrival to end."""
        return self.ended_s - self.arrival_s


class QueueMoment(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of a queue after the decisions of a slot."""

    at_s: float
    waiting: int
    running: int


class ExecutedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of jobs as it ran under a policy."""

    jobs: tuple[ExecutedJob, ...]
    moments: tuple[QueueMoment, ...]
    """One for each slot."""
    starts_s: tuple[float, ...]
    """Seconds of each start, from the order until ranks are at the step that they go on from."""
    stops_s: tuple[float, ...]
    """Seconds of each stop, from the order until the state is saved and all processes are gone."""
    notes: tuple[str, ...]
    """What happened besides: failures, torn states, clusters that died."""

    @property
    def mean_completion_s(self) -> float:
        """Mean seconds from arrival to end of the jobs that were not given up; NaN if all were."""
        taken = [job.completion_s for job in self.jobs if not job.words]
        return sum(taken) / len(taken) if taken else float("nan")


class SchedulerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated queues under one scheduler; in slots."""

    mean_jct: float
    """Mean over queues of the mean from a job's arrival to its end."""
    ci95: tuple[float, float]
    """Interval of that mean, by Student's t over the queues."""
    makespan: float
    """Mean slot in which the last job of a queue ends."""
    p99: float
    """Mean over queues of what 99 of 100 jobs stay within."""
    quantiles: tuple[float, ...]
    """Slots from arrival to end that 0, 5, ... 100 of 100 jobs of all queues stay within."""


class RealQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of real jobs under one scheduler, and what was predicted of it."""

    planner: str
    predicted_jct_s: float
    """Simulated mean from a job's arrival to its end."""
    measured_jct_s: float
    """Mean over the jobs that were not given up."""
    error: float
    """Predicted over measured, less 1."""
    predicted_makespan_s: float
    measured_makespan_s: float
    slot_s: float
    clusters: tuple[str, ...]
    predicted_ends_s: dict[str, float]
    """Simulated end of each job."""
    executed: ExecutedQueue
    start_s: float
    """Median seconds of a start, measured before."""
    stop_s: float
    """Median seconds of a stop, measured before."""
    kept: float
    """Share of a slot's progress that these leave of one in which a job was given something else."""
    step_s: dict[str, dict[str, float]]
    """Measured seconds of a step, by kind, then by processors and accelerators as "2x1"."""
    notes: tuple[str, ...] = ()


class JobsRun(msgspec.Struct, frozen=True, kw_only=True):
    """Schedulers of queues of jobs: simulated next to each other, and one of them with real jobs."""

    queues: str
    """What was drawn, in words."""
    seeds: int
    kept: float
    """Share of a slot's progress that was left to a job that was given something else, simulated."""
    schedulers: dict[str, SchedulerRecord]
    """Schedulers by name, the shortest mean first."""
    real: RealQueue | None
