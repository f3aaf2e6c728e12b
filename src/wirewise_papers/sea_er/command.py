"""`wirewise run sea-er`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wirewise.results import Comparison
from wirewise_papers.experiment import Experiment, Log
from wirewise_papers.sea_er.job import IncrementalJob

if TYPE_CHECKING:
    from wirewise_papers.sea_er.records import IncrementalRun

__all__ = ["SeaEr"]


class SeaEr(Experiment["IncrementalJob", "IncrementalRun"]):
    """Learn the tasks of a growing graph with rehearsal of old nodes (SEA-ER), compared with other methods."""

    name = "sea-er"
    options = IncrementalJob

    def run(self, job: IncrementalJob, folder: Path, log: Log) -> IncrementalRun:
        """Learn all tasks by every method."""
        from wirewise_papers.sea_er import experiment

        return experiment.run(job, folder, log)

    def comparison(self, result: IncrementalRun) -> Comparison:
        """Accuracy and forgetting of each method."""
        from wirewise_papers.sea_er.page import incremental_comparison

        return incremental_comparison(result)

    def page(self, job: IncrementalJob, result: IncrementalRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.sea_er.page import incremental_html

        return incremental_html(result)
