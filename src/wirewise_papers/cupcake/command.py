"""`wirewise run cupcake`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wirewise.cli.options import GivenOptions
from wirewise.results import Comparison
from wirewise_papers.cupcake.job import CupcakeJob
from wirewise_papers.experiment import Experiment, Log

if TYPE_CHECKING:
    from wirewise_papers.cupcake.records import CompressionRun

__all__ = ["Cupcake"]


class Cupcake(Experiment["CupcakeJob", "CompressionRun"]):
    """Measure codecs and links, plan compressed groups of gradients, and time the plans interleaved (Cupcake)."""

    name = "cupcake"
    options = CupcakeJob

    def prepare(  # type: ignore[override]
        self,
        cli_options: GivenOptions[CupcakeJob],
        log: Log,
        *,
        trace: Annotated[Path, typer.Option(help="JSON with name, elements and gap_us of each gradient.")],
    ) -> CupcakeJob:
        """Read the gradient trace."""
        from wirewise_papers.cupcake import experiment

        return experiment.make_job(trace, **cli_options.values)

    def run(self, job: CupcakeJob, folder: Path, log: Log) -> CompressionRun:
        """Measure, plan and train."""
        from wirewise_papers.cupcake import experiment

        return experiment.run(job, folder, log)

    def comparison(self, result: CompressionRun) -> Comparison:
        """Step and bytes under each plan."""
        from wirewise_papers.cupcake.page import gradients_comparison

        return gradients_comparison(result)

    def page(self, job: CupcakeJob, result: CompressionRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.cupcake.page import gradients_html

        return gradients_html(result)
