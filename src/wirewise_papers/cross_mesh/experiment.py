"""Resharding between meshes on hosts of the lab or of Slurm, compared with other strategies and predictions.

Y. Zhuang et al.: On Optimizing the Communication of Model Parallelism, MLSys 2023. Composes `planners.reshard`, `sim`
(predictions), `runtime.pipeline.reshard` (moves) and `lab` or Slurm (the network).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wirewise.cli.options import GivenOptions
from wirewise.errors import InputError
from wirewise.plans import ReshardPlan, load
from wirewise.results import Comparison
from wirewise_papers.cross_mesh.job import CrossMeshOptions, ReshardJob
from wirewise_papers.experiment import Log
from wirewise_papers.interleaved import Interleaved, Measurements, Subject

if TYPE_CHECKING:
    from wirewise.trials.rank import Rank
    from wirewise_papers.cross_mesh.records import ReshardRun

__all__ = ["CrossMesh"]


class CrossMesh(Interleaved[ReshardJob, "ReshardRun"]):
    """Move tensors between meshes by a plan, compared with other strategies (cross-mesh resharding).

    Links, TCP and bytes are real; every part is compared with the result of slicing.
    """

    name = "reshard"
    options = CrossMeshOptions
    job = ReshardJob
    unit = "move"
    warm_up = 1
    filling = 0

    def prepare(  # type: ignore[override]
        self,
        cli_options: GivenOptions[CrossMeshOptions],
        log: Log,
        *,
        plan: Annotated[Path, typer.Argument(help="File of `wirewise plan reshard`.")],
    ) -> ReshardJob:
        """Plan the other strategies for the same tensors.

        Raises:
            InputError: The file holds a plan of another family.
        """
        from wirewise_papers.cross_mesh.planning import make_job

        loaded = load(plan)
        if not isinstance(loaded, ReshardPlan):
            raise InputError(f"{plan} is a {loaded.family} plan; expected one of `wirewise plan reshard`")
        return make_job(loaded, cli_options.record(), log)

    def plans(self, job: ReshardJob) -> Mapping[str, ReshardPlan]:
        """Plans of the job."""
        return job.plans

    def rates(self, job: ReshardJob) -> tuple[str, ...]:
        """Rate of each host's link."""
        return job.links

    def ranks(self, job: ReshardJob) -> int:
        """Number of ranks of the plans, the same on each host."""
        return job.first.world_size

    def turns(self, job: ReshardJob) -> list[int]:
        """Number of moves per turn."""
        return [1] * job.turns

    def subjects(self, rank: Rank[ReshardJob]) -> Mapping[str, Subject]:
        """Moves by each plan."""
        from wirewise_papers.cross_mesh.moving import movers

        return movers(rank)

    def summarise(self, job: ReshardJob, measurements: Mapping[str, Measurements]) -> ReshardRun:
        """Compare all plans with the given one."""
        from wirewise_papers.cross_mesh.planning import summarise

        return summarise(job, measurements)

    def comparison(self, result: ReshardRun) -> Comparison:
        """Measured and predicted moves of each plan, and the lower bound."""
        from wirewise_papers.cross_mesh.page import reshard_comparison

        return reshard_comparison(result)

    def page(self, job: ReshardJob, result: ReshardRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.cross_mesh.page import reshard_html
        from wirewise_papers.cross_mesh.planning import links_of

        return reshard_html(result, job.plans, links_of(job))
