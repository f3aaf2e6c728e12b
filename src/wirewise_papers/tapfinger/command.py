"""`wirewise run tapfinger`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wirewise.results import Comparison
from wirewise_papers.experiment import Experiment, Log
from wirewise_papers.tapfinger.job import TapFingerJob

if TYPE_CHECKING:
    from wirewise_papers.tapfinger.records import JobsRun

__all__ = ["TapFinger"]


class TapFinger(Experiment["TapFingerJob", "JobsRun"]):
    """Schedule queues of training jobs by a learned policy (TapFinger), compared with rules, and run real jobs by it.

    Queues are simulated over several seeds. Real jobs run on clusters of the lab, stopped and restarted as the
    scheduler decides; compute of accelerators is slept.
    """

    name = "tapfinger"
    options = TapFingerJob
    on_hosts = False

    def run(self, job: TapFingerJob, folder: Path, log: Log) -> JobsRun:
        """Simulate the queues and run the real one."""
        from wirewise_papers.tapfinger import experiment

        return experiment.run(job, folder, log)

    def comparison(self, result: JobsRun) -> Comparison:
        """Completion times under each scheduler."""
        from wirewise_papers.tapfinger.page import jobs_comparison

        return jobs_comparison(result)

    def page(self, job: TapFingerJob, result: JobsRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.tapfinger.page import jobs_html

        return jobs_html(result)
