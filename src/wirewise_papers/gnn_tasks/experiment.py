"""Placements of GNN training tasks, executed on hosts and compared with simulated times.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wirewise.cli.options import GivenOptions
from wirewise.cli.sampling import Tasks, chosen_tasks
from wirewise.plans import PlacementPlan
from wirewise.results import Comparison
from wirewise_papers.experiment import Log
from wirewise_papers.gnn_tasks.job import GnnTasksOptions
from wirewise_papers.gnn_tasks.planning import PlacementJob
from wirewise_papers.interleaved import Interleaved, Measurements, Subject, plan_file

if TYPE_CHECKING:
    from wirewise.sim.flows.measured import PlanComparison
    from wirewise.trials.rank import Rank
    from wirewise_papers.gnn_tasks.records import PlacementRun

__all__ = ["GnnTasks"]


class GnnTasks(Interleaved[PlacementJob, "PlacementRun"]):
    """Place the tasks of GNN training, and execute the placements, compared with rules (Luo, Bao, Wu).

    Links, TCP and bytes are real. Computing is emulated: a task sleeps its time.
    """

    name = "gnn-tasks"
    options = GnnTasksOptions
    job = PlacementJob
    unit = "run and its start"
    filling = 0

    def prepare(  # type: ignore[override]
        self, cli_options: GivenOptions[GnnTasksOptions], log: Log, *, tasks: GivenOptions[Tasks]
    ) -> PlacementJob:
        """Plan every method under every policy."""
        from wirewise_papers.gnn_tasks.planning import make_job

        wish = cli_options.record()
        return make_job(wish, chosen_tasks(tasks, wish.names, wish.seed), log)

    def plans(self, job: PlacementJob) -> Mapping[str, PlacementPlan]:
        """Plans of the job."""
        return job.plans

    def rates(self, job: PlacementJob) -> tuple[str, ...]:
        """Rate of each host's link."""
        return job.links

    def turns(self, job: PlacementJob) -> list[int]:
        """One execution per turn."""
        return [1] * job.turns

    def subjects(self, rank: Rank[PlacementJob]) -> Mapping[str, Subject]:
        """This host's part of each plan."""
        from wirewise_papers.gnn_tasks.executing import executions

        return executions(rank)

    def summarise(self, job: PlacementJob, measurements: Mapping[str, Measurements]) -> PlacementRun:
        """Compare all plans with the first one."""
        from wirewise_papers.gnn_tasks.planning import summarise

        return summarise(job, self._compared(job, measurements))

    def execute_plans(self, job: PlacementJob, folder: Path, log: Log) -> dict[str, PlanComparison]:
        """Execute all plans and compare them per task and per flow. Raises the errors of `run`."""
        return self._compared(job, self.measure(job, folder, log))

    def _compared(
        self, job: PlacementJob, measurements: Mapping[str, Measurements]
    ) -> dict[str, PlanComparison]:
        from wirewise.sim.flows.measured import OpTimes
        from wirewise_papers.gnn_tasks.planning import compare

        return compare(
            job, {name: msgspec.convert(one.outcome, list[OpTimes]) for name, one in measurements.items()}
        )

    def comparison(self, result: PlacementRun) -> Comparison:
        """Measured and simulated iterations of each plan."""
        from wirewise_papers.gnn_tasks.page import placement_comparison

        return placement_comparison(result)

    def page(self, job: PlacementJob, result: PlacementRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.gnn_tasks.page import placement_html

        return placement_html(result, job.plans)

    def plan_file(self, folder: Path, result: PlacementRun) -> Path:
        """File of the fastest plan."""
        return plan_file(folder, result.fastest)
