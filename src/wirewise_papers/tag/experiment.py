"""TAG: a model deployed on heterogeneous hosts of a lab or of Slurm, compared with data parallelism and planners.

S. Zhang, X. Yi, L. Diao, C. Wu, S. Wang, W. Lin: Expediting Distributed DNN Training with Device Topology-Aware Graph
Deployment, TPDS 2023. Composes `planners.placement.tag`, `sim` (predictions), `runtime.deployment` (training), `lab` or
Slurm (the network).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from wirewise.cli.options import GivenOptions
from wirewise.plans.deployment import DeploymentPlan
from wirewise.results import Comparison
from wirewise_papers.experiment import Log
from wirewise_papers.interleaved import Interleaved, Measurements, Subject
from wirewise_papers.tag.job import COMPARED, DeploymentJob, TagOptions

if TYPE_CHECKING:
    from wirewise.trials.rank import Rank
    from wirewise.trials.start import Network
    from wirewise_papers.tag.records import DeploymentRun

__all__ = ["Tag"]


class Tag(Interleaved[DeploymentJob, "DeploymentRun"]):
    """Deploy a model on hosts of unequal speed and links by a plan of TAG, compared with data parallelism.

    Numbers, messages and links are real. Passes take at least the time of a device, the rest is slept; with
    --computing real slower hosts are throttled.
    """

    name = "tag"
    options = TagOptions
    job = DeploymentJob
    warm_up = COMPARED
    filling = 0

    def prepare(self, cli_options: GivenOptions[TagOptions], log: Log) -> DeploymentJob:
        """Plan with every requested planner."""
        from wirewise_papers.tag.planning import make_job

        return make_job(cli_options.record(), log)

    def plans(self, job: DeploymentJob) -> Mapping[str, DeploymentPlan]:
        """Plans of the job."""
        return job.plans

    def rates(self, job: DeploymentJob) -> tuple[str, ...]:
        """Rate of each host's link."""
        return job.rates

    def shape(self, job: DeploymentJob, network: Network) -> None:
        """Throttle slower hosts if computing is real."""
        from wirewise.lab import Lab

        if job.measured is not None and isinstance(network, Lab):
            for host, speed in enumerate(job.speeds):
                network.slow(host, 1.0 / speed, resource="cpu")

    def subjects(self, rank: Rank[DeploymentJob]) -> Mapping[str, Subject]:
        """A training under each plan."""
        from wirewise_papers.tag.training import trainings

        return trainings(rank)

    def summarise(self, job: DeploymentJob, measurements: Mapping[str, Measurements]) -> DeploymentRun:
        """Compare all plans with the first one."""
        from wirewise_papers.tag.planning import summarise

        return summarise(job, measurements)

    def comparison(self, result: DeploymentRun) -> Comparison:
        """Measured and predicted steps of each plan."""
        from wirewise_papers.tag.page import deployment_comparison

        return deployment_comparison(result)

    def page(self, job: DeploymentJob, result: DeploymentRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.tag.page import deployment_html

        return deployment_html(result, job.plans)

    def plan_file(self, folder: Path, result: DeploymentRun) -> Path:
        """File of the fastest plan."""
        return folder / f"plan-{result.fastest}.json"
