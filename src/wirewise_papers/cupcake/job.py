"""Job file of a run of compressed gradients, which the parent writes for its ranks, and the plans that both name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from wirewise import options as opt
from wirewise.cost.curve import ZERO
from wirewise.cost.gradients import WIRES, GradientCosts, codec_options
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake import (
    LEAST_GAIN,
    SLACK,
    CompressionProblem,
    Option,
    candidates,
    compression_problem,
    parse_split,
    plan_groups,
    trial_candidates,
    with_splits,
)
from wirewise.plans import FusionPlan
from wirewise.plans.fusion import Bucket
from wirewise.trace.gradients import GradientTrace
from wirewise_papers.cupcake.records import GroupRecord

__all__ = [
    "AUTO",
    "COSTS_FILE",
    "TRACE_FILE",
    "CupcakeJob",
    "JobCosts",
    "groups_of",
    "make_finalists",
    "make_plans",
    "payload_bytes",
    "plan_file",
]

COSTS_FILE, TRACE_FILE = "costs.json", "trace.json"
"""Measurements in a run's folder: codecs and collectives, and the gradients as this model makes them."""

AUTO = ("fp16", "topk", "efsign")
"""Codecs among which `auto` lets the planner choose."""


class CupcakeJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the ranks of a run.

    Raises:
        InputError: A value is invalid.
        PlanError: A plan is of no known planner.
    """

    trace: GradientTrace
    """Gradient trace, already scaled."""
    hosts: Annotated[int, opt.about("Hosts to use, one rank on each.", ge=2)] = 4
    link: opt.Link = "100mbit"
    network: opt.HostNetwork = "auto"
    plans: Annotated[
        opt.Distinct,
        opt.about(
            "Plans to compare: cupcake, layer-wise, even:K, bucket:MIB, mg-wfbp, mergecomp; one codec for all groups "
            "by its name before it, such as none:bucket:25."
        ),
    ] = ("cupcake", "layer-wise", "none:bucket:25")
    codec: Annotated[
        str, opt.about("Codec of plans that name none: its name, none, or auto: fp16, topk, efsign or none.")
    ] = "auto"
    ratio: Annotated[float, opt.about("Fraction of the values that sparse codecs keep.", gt=0, le=1)] = 0.01
    least_gain: Annotated[
        float,
        opt.about(
            "Fraction of a step that codecs must save, measured or predicted; else cupcake uses none.",
            ge=0,
            lt=1,
        ),
    ] = LEAST_GAIN
    trials: Annotated[
        opt.Natural,
        opt.about(
            "Windows in which cupcake tries its plans with each codec before it chooses; 0: predictions decide."
        ),
    ] = 2
    splits: Annotated[
        str,
        opt.about(
            "Largest size of a tensor of cupcake, such as 16MiB, above which it travels in pieces; none; or auto: if "
            "the step is predicted to gain 2 %.",
            option="--split",
            check=parse_split,
        ),
    ] = "auto"
    slack: Annotated[float, opt.about(ge=0, lt=1)] = SLACK
    """Fraction of cupcake's shortest step that is given up for less to encode, send and decode."""
    forward_share: Annotated[
        float, opt.about("Forward time as a fraction of backward time, which traces do not contain.", ge=0)
    ] = 0.5
    scale: Annotated[
        opt.Count, opt.about("Divisor of the elements of each gradient, for short runs; not of buckets.")
    ] = 1
    steps: Annotated[opt.Count, opt.about("Steps measured in each window of a plan.")] = 7
    rounds: Annotated[opt.Count, opt.about("Windows of each plan, interleaved.")] = 2
    warmup: opt.Natural = 1
    """Number of steps at the start of a window that are not counted."""
    trace_steps: opt.Count = 10
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        # Needs torch, which takes seconds to import.
        from wirewise.codec.gradients import make

        trial = CompressionProblem(
            elements=[1], gaps_s=[0.0], options=(Option("none", "all_reduce", "inline", ZERO, ZERO, ZERO),)
        )
        for name in self.plans:
            codecs, method = self.split(name)
            plan_groups(trial, method=method)
            for codec in codecs:
                if codec != "none":
                    make(codec, **codec_options(codec, self.ratio))

    def split(self, plan: str) -> tuple[tuple[str, ...], str]:
        """Codecs and planner of a plan's name.

        Raises:
            InputError: A codec is unknown.
        """
        first, _, rest = plan.partition(":")
        named = first in WIRES or first == "auto"
        codec, method = (first, rest) if named else (self.codec, plan)
        if codec == "auto":
            return (*AUTO, "none"), method
        if codec not in WIRES:
            raise InputError(f"unknown codec {codec!r}; expected auto or one of: {', '.join(WIRES)}")
        # A codec that a plan names is for all its groups; of that of the job groups may do without.
        return ((codec,) if named or codec == "none" else (codec, "none")), method

    @property
    def codecs(self) -> tuple[str, ...]:
        """Codecs that a plan may use, without "none"."""
        found = (codec for plan in self.plans for codec in self.split(plan)[0])
        return tuple(codec for codec in dict.fromkeys(found) if codec != "none")


class JobCosts(NamedTuple):
    """Measurements of the ranks before planning."""

    trace: GradientTrace
    forward_s: float
    costs: GradientCosts


def plan_file(folder: Path, name: str) -> Path:
    """File of a plan in the folder of a run."""
    return folder / f"plan-{name.replace(':', '-')}.json"


def make_plans(job: CupcakeJob, measurements: JobCosts) -> dict[str, tuple[FusionPlan, CompressionProblem]]:
    """Every plan of the job, with its problem."""
    return {name: _made(job, measurements, *job.split(name), job.least_gain) for name in job.plans}


def make_finalists(
    job: CupcakeJob, measurements: JobCosts
) -> dict[str, dict[str, tuple[FusionPlan, CompressionProblem]]]:
    """Candidates of a trial by measured steps (`trial_candidates`), for each Cupcake plan that may choose codecs."""
    chosen = {}
    for name in job.plans:
        codecs, method = job.split(name)
        if method != "cupcake" or len(codecs) == 1:
            continue
        made = {
            f"{name} ({way})": _made(job, measurements, own, method, 0.0)
            for way, own in candidates(codecs).items()
        }
        chosen[name] = {
            way: made[way] for way in trial_candidates({way: plan for way, (plan, _) in made.items()})
        }
    return chosen


def _made(
    job: CupcakeJob, found: JobCosts, codecs: tuple[str, ...], method: str, least_gain: float
) -> tuple[FusionPlan, CompressionProblem]:
    problem = compression_problem(found.trace, codec=codecs, costs=found.costs, ranks=job.hosts)
    problem = replace(problem, forward_s=found.forward_s)
    split = parse_split(job.splits) if method == "cupcake" else "none"
    plan = plan_groups(problem, method=method, least_gain=least_gain, slack=job.slack, split=split)
    return plan, with_splits(problem, plan.splits)


def groups_of(
    plan: FusionPlan, problem: CompressionProblem, ratio: float, measurements: list[list[float]] | None = None
) -> list[GroupRecord]:
    """Groups of a plan with predicted and measured times.

    The predicted encoding time includes the delay of back-propagation by the group's collective.
    """
    problem = problem if plan.compresses else problem.plain
    options = {(o.codec, o.scheme, o.decode): o for o in problem.options}
    sizes = dict(zip(problem.names, problem.elements, strict=True))
    found = []
    for number, (bucket, span) in enumerate(zip(plan.buckets, plan.spans, strict=True)):
        own = [sizes[name] for name in bucket.parameters]
        option = options[bucket.codec, bucket.scheme, bucket.decode]
        curves = (option.encode_s, option.communicate_s, option.decode_s)
        encode_s, communicate_s, decode_s = (float(curve(sum(own))) for curve in curves)
        found.append(
            GroupRecord(
                first=span.first,
                last=span.last,
                elements=sum(own),
                codec=bucket.codec,
                scheme=bucket.scheme,
                decode=bucket.decode,
                payload_bytes=payload_bytes(bucket, own, problem.ranks, ratio),
                predicted_s=(encode_s, communicate_s, decode_s),
                measured_s=tuple(measurements[number]) if measurements else None,  # type: ignore[arg-type]
            )
        )
    return found


def payload_bytes(bucket: Bucket, sizes: list[int], ranks: int, ratio: float) -> int:
    """Bytes that a rank sends for a bucket in one step, at one rank per host, without headers."""
    # Need torch, which takes seconds to import.
    from wirewise.codec.gradients import Segments, make
    from wirewise.runtime.data_parallel.parts import PayloadCodec

    ring = 2 * (ranks - 1) / ranks
    if bucket.codec == "none":
        return round(ring * 4 * sum(sizes))
    own = make(bucket.codec, **codec_options(bucket.codec, ratio)).size_bytes(Segments(sizes))
    if bucket.scheme == "all_reduce":
        return round(ring * own)
    flags = 2 if bucket.scheme == "divisible" else 1
    sent = ring * own if bucket.scheme == "divisible" else (ranks - 1) * own
    return round(sent) + flags * (ranks - 1) * PayloadCodec.FLAG_BYTES
