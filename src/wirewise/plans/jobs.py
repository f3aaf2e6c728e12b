"""Schedule of a queue's jobs: their hosts, times and resources."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import ClassVar

import msgspec

from wirewise.errors import PlanError
from wirewise.plans.base import Plan, TopologyLike

__all__ = ["JobAllotment", "JobPlan"]


class JobAllotment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPUs and accelerators of a cluster allotted to a job for a time."""

    job: str
    cluster: int
    """Index of the cluster."""
    cpus: int
    gpus: int
    start: int
    """First slot."""
    end: int
    """Slot after the last."""


class JobPlan(Plan, frozen=True, kw_only=True, tag="jobs"):
    """All allotments of a queue's jobs; the world size is the number of clusters.

    A job with several allotments is resized or moved between them, or stopped for a while.
    """

    family: ClassVar[str] = "jobs"

    allotments: tuple[JobAllotment, ...]
    """Allotments in order of start."""
    clusters: tuple[str, ...]
    """Names, [world size]."""
    slot_s: float
    """Seconds of a slot."""
    kept: float
    """Fraction of a slot's progress that a job makes if it was resized in the slot."""
    mean_completion_s: float
    """Predicted mean completion time of jobs, in seconds from arrival to end."""
    predicted_s: float
    """Predicted makespan: seconds from the first slot to the end of the last job."""
    notes: tuple[str, ...] = ()
    """Notes of the planner."""

    @property
    def headline(self) -> str:
        """Jobs, clusters, and the mean of their times."""
        jobs = len({one.job for one in self.allotments})
        return (
            f"jobs plan by {self.planner!r} for {self.world_size} clusters: {jobs} jobs take "
            f"{self.mean_completion_s:.4g} s on average, simulated, all of them {self.predicted_s:.4g} s"
        )

    def of(self, job: str) -> list[JobAllotment]:
        """Allotments of one job, in time order."""
        return [one for one in self.allotments if one.job == job]

    def check(self, topology: TopologyLike) -> None:
        """Raise if the plan is inconsistent or was made for another number of hosts; see `Plan.check`."""
        if len(topology.hosts) != self.world_size:
            raise PlanError(
                f"plan {self.planner!r} was made for world size {self.world_size}, the topology has "
                f"{len(topology.hosts)} hosts; make the plan again for these hosts, a cluster each"
            )
        self.check_itself()

    def check_itself(self) -> None:
        """Raise if a value is out of range or a job has overlapping allotments; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (*self._value_faults(), *self._allotment_faults()):
            raise PlanError(fault)

    def _value_faults(self) -> Iterator[str]:
        if len(self.clusters) != self.world_size or len(set(self.clusters)) != self.world_size:
            yield f"clusters are {list(self.clusters)} - at `$.clusters`; expected {self.world_size} different names"
        for name in ("slot_s", "mean_completion_s", "predicted_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                yield f"{name} is {value} - at `$.{name}`; expected a finite figure above 0"
        if not 0 <= self.kept <= 1:
            yield f"kept is {self.kept} - at `$.kept`; expected a share of 0 to 1"
        if not self.allotments:
            yield "there is no allotment - at `$.allotments`; expected at least one for each job"

    def _allotment_faults(self) -> Iterator[str]:
        ends: dict[str, int] = {}
        before = 0
        for number, one in enumerate(self.allotments):
            where = f"allotment {number} of job {one.job!r} - at `$.allotments[{number}]`"
            if not 0 <= one.cluster < self.world_size:
                yield f"{where}: cluster is {one.cluster}; expected 0 to {self.world_size - 1}"
            if min(one.cpus, one.gpus) < 0 or one.cpus + one.gpus < 1:
                yield f"{where}: has {one.cpus} cpus and {one.gpus} gpus; expected at least one of either"
            if not before <= one.start < one.end:
                yield f"{where}: slots {one.start} to {one.end}; expected a start from {before} on, before the end"
            if one.start < (last := ends.get(one.job, 0)):
                yield f"{where}: starts before the job's last one ends in slot {last}"
            ends[one.job], before = one.end, one.start

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per cluster: its jobs and their resources."""
        rows = []
        for number, name in enumerate(self.clusters):
            here = [one for one in self.allotments if one.cluster == number]
            amounts = [
                sum(getattr(one, what) * (one.end - one.start) for one in here) for what in ("cpus", "gpus")
            ]
            rows.append([name, str(len({one.job for one in here})), str(len(here)), *map(str, amounts)])
        return ["cluster", "jobs", "allotments", "cpu slots", "gpu slots"], rows
