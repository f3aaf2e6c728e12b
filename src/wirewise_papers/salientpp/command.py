"""`wirewise run salientpp`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wirewise.results import Comparison
from wirewise_papers.experiment import Experiment, Log
from wirewise_papers.salientpp.job import MiniBatchJob

if TYPE_CHECKING:
    from wirewise_papers.salientpp.records import MiniBatchRun

__all__ = ["Salientpp"]


class Salientpp(Experiment["MiniBatchJob", "MiniBatchRun"]):
    """Train GNNs on mini-batches with cached remote features and a pipeline (SALIENT++), compared with neither."""

    name = "salientpp"
    options = MiniBatchJob

    def run(self, job: MiniBatchJob, folder: Path, log: Log) -> MiniBatchRun:
        """Partition the graph, plan the cache, and train every mode."""
        from wirewise_papers.salientpp import experiment

        return experiment.run(job, folder, log)

    def comparison(self, result: MiniBatchRun) -> Comparison:
        """Epochs, bytes and accuracy of each mode."""
        from wirewise_papers.salientpp.page import mini_batch_comparison

        return mini_batch_comparison(result)

    def page(self, job: MiniBatchJob, result: MiniBatchRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.salientpp.page import mini_batch_html

        return mini_batch_html(result)
