"""`wirewise run rhino`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wirewise.results import Comparison
from wirewise_papers.experiment import Experiment, Log
from wirewise_papers.rhino.job import RhinoOptions

if TYPE_CHECKING:
    from wirewise_papers.rhino.records import ParallelRun

__all__ = ["Rhino"]


class Rhino(Experiment["RhinoOptions", "ParallelRun"]):
    """Plan how a model is split over ranks and train it so, compared with DDP, FSDP2 and layers split by hand (Rhino).

    Numbers, messages and links are real. Operators take as long as on an accelerator: the rest is slept.
    """

    name = "rhino"
    options = RhinoOptions

    def run(self, job: RhinoOptions, folder: Path, log: Log) -> ParallelRun:
        """Capture, plan and train."""
        from wirewise_papers.rhino import experiment

        return experiment.run(job, folder, log)

    def comparison(self, result: ParallelRun) -> Comparison:
        """Measured and predicted steps of the plan and of the baselines."""
        from wirewise_papers.rhino.page import parallel_comparison

        return parallel_comparison(result)

    def page(self, job: RhinoOptions, result: ParallelRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.rhino.page import parallel_html

        return parallel_html(result)

    def plan_file(self, folder: Path, result: ParallelRun) -> Path:
        """File of the plan."""
        from wirewise_papers.rhino import experiment

        return experiment.plan_file(folder)
