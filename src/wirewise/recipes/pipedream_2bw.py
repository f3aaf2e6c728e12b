"""PipeDream-2BW: a model in pipeline stages that never empty, next to pipelines that do.

D. Narayanan, A. Phanishayee, K. Shi, X. Chen, M. Zaharia: Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021.
Eager 1F1B: Y. Zhuang et al., MLSys 2023. Composes `plans.stages`, `sim` (predictions), `runtime.pipeline` (training)
and `lab` or Slurm (the network). Losses are real; passes take at least the time of the accelerator that they stand for.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from wirewise.cost.links import Links
from wirewise.files import owns_folder
from wirewise.plans import StagePlan, save
from wirewise.recipes.own_links import settled
from wirewise.recipes.pipedream_2bw_job import MODES, PipelineJob, module_names, plan_of
from wirewise.report.series import smoothed
from wirewise.results import PipelineRecord, PipelineRun, PipelineTimes
from wirewise.sim.lowering.stages import with_predictions
from wirewise.trace.stages import StageModule, StageTrace
from wirewise.trials.start import open_network, run_ranks

__all__ = ["PipelineJob", "plans_of", "run", "stage_trace", "summarise"]

_NEAR = 1.01
"""A mode has reached the reference's final loss when its own is within one percent of it."""


@owns_folder
def run(job: PipelineJob, folder: Path, say: Callable[[str], None]) -> PipelineRun:
    """Train all modes of a job in turns, a rank on each host of a lab or of an allocation of Slurm.

    Args:
        job: Settings of the run.
        folder: Takes the job, the plans, logs and what was measured.
        say: Called with messages on the progress.

    Raises:
        InputError: There is no allocation with so many hosts.
        LabError: No lab can be built here.
        PeerError: A rank failed; the message holds its last words.
    """
    job = settled(job, job.hosts, say)
    for mode, plan in plans_of(job).items():
        save(plan, folder / f"plan-{mode}.json")
    with open_network(job.network, job.hosts, job.link) as network:
        worker = "wirewise.recipes.pipedream_2bw_worker"
        found = run_ranks(
            worker, folder, dict[str, PipelineTimes], network=network, ranks=job.hosts, job=job, log=say
        )
    return summarise(job, found)


def stage_trace(job: PipelineJob) -> StageTrace:
    """The model as planners and the simulator see it: time of passes as the job says, in equal parts a stage."""
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
    """Plan of each mode, with what the simulator predicts of it."""
    links = Links.of_lab([job.link] * job.hosts)
    trace = stage_trace(job)
    return {mode: with_predictions(plan_of(job, mode), trace, links) for mode in job.modes}


def summarise(job: PipelineJob, found: dict[str, PipelineTimes]) -> PipelineRun:
    """All modes next to the first one."""
    reference = smoothed(found[job.modes[0]].losses)[-1]
    modes, plans = {}, plans_of(job)
    for name, one in found.items():
        losses = smoothed(one.losses)
        reached = next(
            (end for end, loss in zip(one.ends_s, losses, strict=True) if loss <= _NEAR * reference), None
        )
        modes[name] = PipelineRecord(
            step_s=statistics.median(one.steps_s),
            predicted_step_s=plans[name].predicted_s,
            bubble=one.bubble,
            peak_bytes=one.peak_bytes,
            final_loss=losses[-1],
            time_to_reference_loss_s=reached,
            losses=losses,
            passes=one.passes,
        )
    best = min(modes, key=lambda name: modes[name].step_s)
    return PipelineRun(
        emulated=f"passes take at least {job.forward_ms:g} and {job.backward_ms:g} ms; numbers, messages and links are "
        "real",
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
