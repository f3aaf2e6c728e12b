"""PipeDream-2BW: a model in pipeline stages that never drain, compared with pipelines that do.

D. Narayanan, A. Phanishayee, K. Shi, X. Chen, M. Zaharia: Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021.
Eager 1F1B: Y. Zhuang et al., MLSys 2023. Composes `plans.stages`, `sim` (predictions), `runtime.pipeline` (training)
and `lab` or Slurm (the network).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from wirewise.cli.options import GivenOptions
from wirewise.cost.links import Links
from wirewise.plans import StagePlan
from wirewise.results import Comparison
from wirewise.trace.stages import StageModule, StageTrace
from wirewise_papers.experiment import Log
from wirewise_papers.interleaved import Interleaved, Measurements, Subject
from wirewise_papers.losses import smooth
from wirewise_papers.pipedream_2bw.job import MODES, PipelineJob, module_names, plan_of
from wirewise_papers.pipedream_2bw.records import PipelineMeasures, PipelineRecord, PipelineRun

if TYPE_CHECKING:
    from wirewise.trials.rank import Rank

__all__ = ["PipeDream2BW", "plans_of", "stage_trace"]

_NEAR = 1.01
"""A mode has reached the reference's final loss when its own is within one percent of it."""


class PipeDream2BW(Interleaved[PipelineJob, PipelineRun]):
    """Train a language model in pipeline stages, with and without flushes between updates (PipeDream-2BW).

    Numbers, messages and links are real. Passes take at least the time of an accelerator: the rest is slept.
    """

    name = "pipedream-2bw"
    options = PipelineJob
    unit = "update"
    together = False

    def prepare(self, cli_options: GivenOptions[PipelineJob], log: Log) -> PipelineJob:
        """Measure the links of an allocation."""
        from wirewise_papers.own_links import resolve_links

        job = cli_options.record()
        return resolve_links(job, job.hosts, log)

    def plans(self, job: PipelineJob) -> dict[str, StagePlan]:
        """Plan of each mode with its prediction."""
        return plans_of(job)

    def rates(self, job: PipelineJob) -> tuple[str, ...]:
        """Rate of each host's link."""
        return (job.link,) * job.hosts

    def turns(self, job: PipelineJob) -> list[int]:
        """Number of counted updates per turn."""
        ends = [job.updates * number // job.turns for number in range(job.turns + 1)]
        return [end - start - self.filling for start, end in pairwise(ends)]

    def subjects(self, rank: Rank[PipelineJob]) -> Mapping[str, Subject]:
        """A pipeline for each mode."""
        from wirewise_papers.pipedream_2bw.training import Training

        return {name: Training(rank, name) for name in rank.job.modes}

    def summarise(self, job: PipelineJob, measurements: Mapping[str, Measurements]) -> PipelineRun:
        """Compare all modes with the first one."""
        # Each replica has the loss of its own batches, on its last rank.
        losses = {name: smooth([x / job.replicas for x in one.losses]) for name, one in measurements.items()}
        goal, plans = _NEAR * losses[job.modes[0]][-1], plans_of(job)
        modes = {}
        for name, one in measurements.items():
            own = msgspec.convert(one.outcome, PipelineMeasures)
            reached = (end for end, loss in zip(one.ends_s, losses[name], strict=True) if loss <= goal)
            modes[name] = PipelineRecord(
                step_s=one.step_s,
                predicted_step_s=plans[name].predicted_s,
                bubble=own.bubble,
                peak_bytes=own.peak_bytes,
                final_loss=losses[name][-1],
                time_to_reference_loss_s=next(reached, None),
                losses=losses[name],
                passes=own.passes,
            )
        best = min(modes, key=lambda name: modes[name].step_s)
        return PipelineRun(
            emulated=f"passes take at least {job.forward_ms:g} and {job.backward_ms:g} ms; numbers, messages and links "
            "are real",
            network=job.network,
            hosts=job.hosts,
            link=job.link,
            stages=job.stages,
            replicas=job.replicas,
            microbatches=job.microbatches,
            updates=job.updates,
            optimizer=job.optimizer,
            meanings={name: MODES[name][1] for name in modes},
            modes=modes,
            fastest=best,
            speedup_step=modes[job.modes[0]].step_s / modes["2bw" if "2bw" in modes else best].step_s,
        )

    def comparison(self, result: PipelineRun) -> Comparison:
        """Time, memory and loss of an update in each mode."""
        from wirewise_papers.pipedream_2bw.page import pipeline_comparison

        return pipeline_comparison(result)

    def sections(self, job: PipelineJob, result: PipelineRun) -> Iterable[str]:
        """Timetable of each mode, planned and measured."""
        from wirewise_papers.pipedream_2bw.page import timetables

        return timetables(result, plans_of(job))


def stage_trace(job: PipelineJob) -> StageTrace:
    """Stage trace of the model for planners and the simulator; time of passes from the job, split evenly."""
    plan = plan_of(job, job.modes[0])
    share = {name: len(stage.modules) for stage in plan.stages for name in stage.modules}
    block_bytes = 4.0 * (12 * job.width**2 + 13 * job.width)
    modules = tuple(
        StageModule(
            name=name,
            forward_s=(1e-3 * job.forward_ms / share[name],),
            backward_s=(1e-3 * job.backward_ms / share[name],),
            output_bytes=4.0 * job.length * job.width,
            parameter_bytes=block_bytes if name.startswith("block") else 4.0 * 128 * job.width,
        )
        for name in module_names(job.blocks)
    )
    return StageTrace(modules=modules, sizes=(job.microbatch_size,), model="characters", device="emulated")


def plans_of(job: PipelineJob) -> dict[str, StagePlan]:
    """Plan of each mode with its simulated time."""
    from wirewise.sim.lowering.stages import with_predictions

    links = Links.of_lab([job.link] * job.hosts)
    trace = stage_trace(job)
    return {mode: with_predictions(plan_of(job, mode), trace, links) for mode in job.modes}
