"""Records of executed queues of training jobs."""

from __future__ import annotations

import msgspec

__all__ = ["ExecutedJob", "ExecutedQueue", "ExecutedShare", "QueueMoment"]


class ExecutedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a cluster held by a job for a time."""

    cluster: int
    cpus: int
    gpus: int
    start_s: float
    """Seconds since the first slot of the queue."""
    end_s: float


class ExecutedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Executed job of a queue; times count from the first slot, in seconds."""

    name: str
    kind: str
    steps: int
    arrival_s: float
    ended_s: float
    """Time at which its last process exited."""
    shares: tuple[ExecutedShare, ...]
    """Shares in order of time; several if the job was resized, moved, stopped for a while or failed."""
    failures: tuple[str, ...] = ()
    """Last output lines of each failure."""
    words: str = ""
    """Reason why it was abandoned; empty if it was not."""

    @property
    def completion_s(self) -> float:
        """Completion time, from arrival to end, in seconds."""
        return self.ended_s - self.arrival_s


class QueueMoment(msgspec.Struct, frozen=True, kw_only=True):
    """Queue lengths after the decisions of a slot."""

    at_s: float
    waiting: int
    running: int


class ExecutedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Queue of jobs executed under a policy."""

    jobs: tuple[ExecutedJob, ...]
    moments: tuple[QueueMoment, ...]
    """Queue lengths, one entry per slot."""
    starts_s: tuple[float, ...]
    """Seconds of each start, from the command until ranks are at the step they resume from."""
    stops_s: tuple[float, ...]
    """Seconds of each stop, from the command until the state is saved and all processes have exited."""
    notes: tuple[str, ...]
    """Incidents: failures, torn states, dead clusters."""

    @property
    def mean_completion_s(self) -> float:
        """Mean completion time of jobs that were not abandoned, in seconds; NaN if all were."""
        taken = [job.completion_s for job in self.jobs if not job.words]
        return sum(taken) / len(taken) if taken else float("nan")
