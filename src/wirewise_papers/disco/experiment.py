"""DisCo: a step with fused operators and buckets that were searched together, compared with DistributedDataParallel.

X. Yi et al.: Optimizing DNN Compilation for Distributed Training with Joint OP and Tensor Fusion, TPDS 2022. Composes
`profile` (operators, all-reduces), `planners.fusion.disco` (the plan), `runtime.data_parallel` (the compiled step) and
`lab` or Slurm (the network). The search decides by estimated steps; measured ones decide whether its plan is advised.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from wirewise import options as opt
from wirewise.cli.options import GivenOptions
from wirewise.cost.intervals import gain_of
from wirewise.plans import FusionPlan, save
from wirewise.report.comparison_page import best_of
from wirewise.report.figures import seconds, signed, size
from wirewise.results import Comparison, Variant
from wirewise_papers.experiment import Log
from wirewise_papers.interleaved import Interleaved, Measurements, Subject, VariantRecord, plan_file

if TYPE_CHECKING:
    from wirewise.trials.rank import Rank

__all__ = ["Disco", "DiscoOptions", "DiscoRun", "verdict_of"]

DDP, PLANNED = "ddp", "disco"
SLOWER = 0.01
"""Fraction of a step of DistributedDataParallel by which a plan may be slower without being reported as slower."""


class DiscoOptions(opt.Options, frozen=True, kw_only=True):
    """Options of the comparison."""

    model: Annotated[
        str,
        opt.about(
            'Model: "mixer" or "mlp", or FILE.py:NAME of a function that returns a model, a batch and a function '
            "loss(model, batch)."
        ),
    ] = "mixer"
    hosts: Annotated[int, opt.about("Hosts, one rank on each.", ge=2)] = 2
    network: opt.HostNetwork = "auto"
    link: opt.Link = "1gbit"
    estimator: Annotated[
        str, opt.about('Seconds of fused operators: "formula", "shipped", or a file of weights.')
    ] = "formula"
    compiler: Annotated[
        Literal["inductor", "none"], opt.about("Compiler that makes a region one kernel; none: no fusion.")
    ] = "inductor"
    passes: Annotated[opt.Count, opt.about("Passes over the operators that measure them.")] = 15
    stop: Annotated[
        opt.Count, opt.about("Changed plans in a row without a better one, after which to stop.")
    ] = 300
    steps: Annotated[opt.Count, opt.about("Counted steps of a turn.")] = 5
    turns: Annotated[int, opt.about("Turns of each variant; pairs of them give the interval.", ge=2)] = 10
    seed: Annotated[int, opt.about("Seed of the search.")] = 0
    timeout_s: opt.Timeout = 600.0


class DiscoRun(msgspec.Struct, frozen=True, kw_only=True):
    """Measured steps under a plan of DisCo and under DistributedDataParallel."""

    options: dict[str, Any]
    advice: str
    """"use the plan" if the whole interval of its gain is above 0, else "leave it to DDP"."""
    sentence: str
    gain: float
    """Mean fraction of a step of DistributedDataParallel that the plan saves, over pairs of turns."""
    gain_ci95: tuple[float, float]
    """95 % interval of `gain`."""
    predicted_gain: float
    errors: dict[str, float]
    """Predicted over measured step, minus 1, by variant."""
    variants: dict[str, VariantRecord]
    plan: FusionPlan


def verdict_of(gain: float, ci95: tuple[float, float], predicted: float) -> tuple[str, str]:
    """Recommendation and its sentence: the plan only if its gain is significant.

    Args:
        gain: Mean fraction of a step that the plan saves.
        ci95: 95 % interval of it.
        predicted: Gain predicted for the plan.
    """
    told = f"{signed(-gain)} of a step of DDP (95 %: {signed(-ci95[1])} to {signed(-ci95[0])})"
    if ci95[0] > 0:
        return "use the plan", f"Use the plan: {told}, measured; {signed(-predicted)} were predicted."
    why = "the plan is slower" if gain < -SLOWER else "what the plan saves may be chance"
    return (
        "leave it to DDP",
        f"Leave it to DDP: {why}, {told}, measured; {signed(-predicted)} were predicted.",
    )


class Disco(Interleaved[DiscoOptions, DiscoRun]):
    """Plan fused operators and buckets together, and measure the compiled step against DistributedDataParallel (DisCo).

    Operators, messages and links are real. The plan is advised only if its gain is significant.
    """

    name = "disco"
    options = DiscoOptions
    warm_up = 2

    def prepare(self, cli_options: GivenOptions[DiscoOptions], log: Log) -> DiscoOptions:
        """Choose the network, with the measured links of an allocation."""
        from wirewise_papers.own_links import resolve_links

        job = cli_options.record()
        if ":" in job.model:
            file, _, name = job.model.rpartition(":")
            job = msgspec.structs.replace(job, model=f"{Path(file).resolve()}:{name}")
        return resolve_links(job, job.hosts, log)

    def rates(self, job: DiscoOptions) -> tuple[str, ...]:
        """Rate of each host's link."""
        return (job.link,) * job.hosts

    def subjects(self, rank: Rank[DiscoOptions]) -> Mapping[str, Subject]:
        """Variants: the step with DistributedDataParallel, and with the plan for the ranks' measurements."""
        from wirewise_papers.disco.training import subjects

        return subjects(rank)

    def run(self, job: DiscoOptions, folder: Path, log: Log) -> DiscoRun:
        """Measure, plan, train both variants interleaved, and write the plan; errors as in `Interleaved.run`."""
        result = self.summarise(job, self.measure(job, folder, log))
        save(result.plan, plan_file(folder, PLANNED))
        return result

    def plan_file(self, folder: Path, result: DiscoRun) -> Path | None:
        """File of the plan. None if it is not advised."""
        return plan_file(folder, PLANNED) if result.advice == "use the plan" else None

    def summarise(self, job: DiscoOptions, measurements: Mapping[str, Measurements]) -> DiscoRun:
        """Compare turns in pairs, whose order alternates."""
        plan = msgspec.convert(measurements[PLANNED].outcome, FusionPlan)
        plain, planned = (
            np.median(np.reshape(measurements[name].steps_s, (job.turns, job.steps)), axis=1)
            for name in (DDP, PLANNED)
        )
        gain = gain_of(1.0 - planned / plain)
        predicted = {DDP: plan.baseline_step_s, PLANNED: plan.predicted_step_s}
        promised = 1.0 - predicted[PLANNED] / predicted[DDP]
        advice, sentence = verdict_of(gain.mean, gain.ci95, promised)
        return DiscoRun(
            options=msgspec.to_builtins(job),
            advice=advice,
            sentence=sentence,
            gain=gain.mean,
            gain_ci95=gain.ci95,
            predicted_gain=promised,
            errors={name: predicted[name] / measurements[name].step_s - 1.0 for name in predicted},
            variants={
                name: VariantRecord(
                    step_s=one.step_s,
                    predicted_step_s=predicted[name],
                    steps_s=one.steps_s,
                    losses=one.losses,
                    bytes_sent=one.bytes_sent,
                    outcome=None,
                )
                for name, one in measurements.items()
            },
            plan=plan,
        )

    def comparison(self, result: DiscoRun) -> Comparison:
        """Both variants, predicted and measured, and the advice."""
        best = min(result.variants, key=lambda name: result.variants[name].step_s)
        regions = sum(len(region) > 1 for region in result.plan.regions)
        return Comparison(
            kind="wirewise run disco",
            sentence=result.sentence,
            cards=(
                ("Advice", result.advice, "by measured steps"),
                ("Plan", f"{regions} fused regions", f"{len(result.plan.buckets)} buckets"),
            ),
            title="Time of a step",
            lead="Medians on the slowest rank; variants are interleaved. Error: predicted over measured.",
            what="variant",
            variants={
                name: Variant(
                    length=one.step_s,
                    words=seconds(one.step_s),
                    colour=best_of(name, best, DDP),
                    cells={
                        "step": seconds(one.step_s),
                        "predicted": seconds(one.predicted_step_s),
                        "error": signed(result.errors[name]),
                        "sent": "-" if one.bytes_sent is None else size(one.bytes_sent),
                        "last loss": f"{one.losses[-1]:.4f}",
                    },
                )
                for name, one in result.variants.items()
            },
        )
