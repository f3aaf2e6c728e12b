"""Launchers of the ranks of jobs on clusters, as seen by a scheduler."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from wirewise.runtime.jobs.training import Progress

__all__ = ["JobLauncher", "JobReport", "JobState"]

JobState = Literal["running", "done", "stopped", "failed"]
"""State of a job: a stopped one has saved its state; a failed one resumes from its last saved state."""


class JobReport(NamedTuple):
    """Status update of a job since the last report."""

    job: str
    state: JobState
    at_s: float
    """Time of the end on the machine's monotonic clock, or of the report."""
    progress: tuple[Progress, ...]
    """Progress of its ranks since the last report."""
    words: str = ""
    """End of the output of a failed job."""


class JobLauncher(Protocol):
    """Launcher of jobs, each on one cluster; a restarted job resumes from its last saved state."""

    def start(self, job: str, cluster: int, cpus: int, gpus: int) -> None:
        """Start the ranks of a job.

        Args:
            job: Name of a job that is not running.
            cluster: Index of the cluster.
            cpus: Number of CPUs shared by all its ranks.
            gpus: Number of accelerators, one rank each; 0 for one rank without.
        """

    def stop(self, job: str) -> None:
        """Ask a job to save its state and exit; a report confirms it."""

    def requeue(self, job: str) -> None:
        """Kill all processes of a job; it can be restarted from its last saved state."""

    def reports(self) -> list[JobReport]:
        """Status updates of all jobs running at the last call; the end of each is reported once."""

    def alive(self, cluster: int) -> bool:
        """Whether a cluster can run jobs."""
