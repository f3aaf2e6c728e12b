"""What starts the ranks of jobs on clusters, as whoever schedules them sees it."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from wirewise.runtime.jobs.training import Progress

__all__ = ["JobLauncher", "JobReport", "JobState"]

JobState = Literal["running", "done", "stopped", "failed"]
"""A job that was stopped has saved its state; one that failed goes on from what it saved before."""


class JobReport(NamedTuple):
    """News of a job since the last report."""

    job: str
    state: JobState
    at_s: float
    """Time of the end on the machine's monotonic clock, or of the report."""
    progress: tuple[Progress, ...]
    """What its ranks have noted since the last report."""
    words: str = ""
    """Last words of a job that failed."""


class JobLauncher(Protocol):
    """Starts and ends jobs, each on one cluster; a job that was started before goes on from what it saved."""

    def start(self, job: str, cluster: int, cpus: int, gpus: int) -> None:
        """Start the ranks of a job.

        Args:
            job: Name of a job that does not run.
            cluster: Number of the cluster.
            cpus: Processors that all its ranks share.
            gpus: Accelerators, a rank on each; 0: one rank without.
        """

    def stop(self, job: str) -> None:
        """Ask a job to save its state and to leave; a report says when it has."""

    def requeue(self, job: str) -> None:
        """Take all processes of a job away at once; it can be started again, from what it saved last."""

    def reports(self) -> list[JobReport]:
        """News of all jobs that ran when this was called last; the end of each is reported once."""

    def alive(self, cluster: int) -> bool:
        """Whether a cluster can run jobs."""
