"""What the parent of a run of compressed gradients writes for its ranks, and the plans that both name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from wirewise import units
from wirewise.codec.gradients import Segments, make
from wirewise.cost.curve import ZERO
from wirewise.cost.gradients import WIRES, GradientCosts
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake import (
    LEAST_GAIN,
    SLACK,
    CompressionProblem,
    Group,
    Option,
    candidates,
    compression_problem,
    finalists,
    parse_split,
    plan_groups,
    with_splits,
)
from wirewise.plans import FusionPlan
from wirewise.plans.fusion import Bucket
from wirewise.results import GroupRecord
from wirewise.runtime.data_parallel.parts import Part
from wirewise.trace.gradients import GradientTrace

__all__ = [
    "AUTO",
    "COSTS_FILE",
    "TRACE_FILE",
    "Job",
    "Measured",
    "groups_of",
    "make_finalists",
    "make_plans",
    "options_of",
    "payload_bytes",
    "plan_file",
]

COSTS_FILE, TRACE_FILE = "costs.json", "trace.json"
"""What was measured, in a run's folder: codecs and collectives, and the gradients as this model makes them."""

AUTO = ("fp16", "topk", "efsign")
"""Codecs among which `auto` lets the planner choose."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the ranks of one run must know."""

    trace: GradientTrace
    """Already scaled."""
    hosts: int = 4
    link: str = "100mbit"
    plans: tuple[str, ...] = ("cupcake", "layer-wise", "none:bucket:25")
    """Planners and rules, with a codec and a colon before one that is for this codec only."""
    codec: str = "auto"
    """A codec, none, or auto; for plans that name none themselves."""
    ratio: float = 0.01
    least_gain: float = LEAST_GAIN
    """Of Cupcake: unless codecs save this share of a step, in a trial or as predicted, nothing is compressed."""
    trials: int = 2
    """Of Cupcake where it may choose codecs: windows in which its plans with each codec are tried; 0: as predicted."""
    splits: str = "auto"
    """Of Cupcake: size above which tensors travel in pieces, none, or auto (`planners.fusion.cupcake.parse_split`)."""
    slack: float = SLACK
    """Of Cupcake: share of the shortest step that is given up for less to encode, send and decode."""
    forward_share: float = 0.5
    scale: int = 1
    """By which the trace's gradients were divided; buckets of so many MiB among the plans are not."""
    steps: int = 7
    """Of each window."""
    rounds: int = 2
    """Windows of each plan."""
    warmup: int = 1
    """Steps at the start of a window that do not count."""
    trace_steps: int = 10
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Check what nothing below checks, before ranks are started.

        Raises:
            InputError: A value that cannot be used.
            PlanError: A plan that nobody makes.
        """
        least = {"hosts": 2, "scale": 1, "steps": 1, "rounds": 1, "trials": 0, "warmup": 0, "trace_steps": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least {value}")
        for name, share in (("least_gain", self.least_gain), ("slack", self.slack)):
            if not 0 <= share < 1:
                raise InputError(f"{name} is {share}; expected a share from 0 to below 1")
        if not self.plans or len(set(self.plans)) != len(self.plans):
            raise InputError(f"plans are {list(self.plans)}; expected at least one, each once")
        units.parse_rate(self.link)
        parse_split(self.splits)
        trial = CompressionProblem(
            elements=[1], gaps_s=[0.0], options=(Option("none", "all_reduce", "inline", ZERO, ZERO, ZERO),)
        )
        for name in self.plans:
            codecs, method = self.split(name)
            plan_groups(trial, method=method)
            for codec in codecs:
                if codec != "none":
                    make(codec, **options_of(codec, self.ratio))

    def split(self, plan: str) -> tuple[tuple[str, ...], str]:
        """Codecs and planner of a plan's name.

        Raises:
            InputError: An unknown codec.
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
        """All that a plan may use, without "none"."""
        found = (codec for plan in self.plans for codec in self.split(plan)[0])
        return tuple(codec for codec in dict.fromkeys(found) if codec != "none")


class Measured(NamedTuple):
    """What the ranks measured before anything was planned."""

    trace: GradientTrace
    forward_s: float
    costs: GradientCosts


def options_of(codec: str, ratio: float) -> dict[str, float]:
    """Options of a codec in a job."""
    return {"ratio": ratio} if codec in WIRES and WIRES[codec].sparse else {}


def plan_file(folder: Path, name: str) -> Path:
    """The file of a run's folder that holds a plan."""
    return folder / f"plan-{name.replace(':', '-')}.json"


def make_plans(job: Job, found: Measured) -> dict[str, tuple[FusionPlan, CompressionProblem]]:
    """Every plan of the job, and the problem that it answers."""
    return {name: _made(job, found, *job.split(name), job.least_gain) for name in job.plans}


def make_finalists(job: Job, found: Measured) -> dict[str, dict[str, tuple[FusionPlan, CompressionProblem]]]:
    """For each plan of Cupcake that may choose codecs: those between which measured steps decide (`finalists`)."""
    chosen = {}
    for name in job.plans:
        codecs, method = job.split(name)
        if method != "cupcake" or len(codecs) == 1:
            continue
        made = {
            f"{name} ({way})": _made(job, found, own, method, 0.0) for way, own in candidates(codecs).items()
        }
        chosen[name] = {way: made[way] for way in finalists({way: plan for way, (plan, _) in made.items()})}
    return chosen


def _made(
    job: Job, found: Measured, codecs: tuple[str, ...], method: str, least_gain: float
) -> tuple[FusionPlan, CompressionProblem]:
    problem = compression_problem(found.trace, codec=codecs, costs=found.costs, ranks=job.hosts)
    problem = replace(problem, forward_s=found.forward_s)
    split = parse_split(job.splits) if method == "cupcake" else "none"
    plan = plan_groups(problem, method=method, least_gain=least_gain, slack=job.slack, split=split)
    return plan, with_splits(problem, plan.splits)


def groups_of(
    plan: FusionPlan, problem: CompressionProblem, ratio: float, measured: list[list[float]] | None = None
) -> list[GroupRecord]:
    """The groups of a plan with what was predicted of them, and what was measured.

    What is predicted for encoding holds the delay of back-propagation by the group's collective.
    """
    problem = problem if plan.compresses else problem.plain
    options = {(o.codec, o.scheme, o.decode): number for number, o in enumerate(problem.options)}
    sizes = dict(zip(problem.names, problem.elements, strict=True))
    found = []
    for number, (bucket, span) in enumerate(zip(plan.buckets, plan.spans, strict=True)):
        group = Group(span.first, span.last, options[bucket.codec, bucket.scheme, bucket.decode])
        found.append(_record(bucket, group, problem, sizes, ratio, measured[number] if measured else None))
    return found


def _record(
    bucket: Bucket,
    group: Group,
    problem: CompressionProblem,
    sizes: Mapping[str, int],
    ratio: float,
    measured: list[float] | None,
) -> GroupRecord:
    elements, option = sum(sizes[name] for name in bucket.parameters), problem.options[group.option]
    curves = (option.encode_s, option.communicate_s, option.decode_s)
    encode_s, communicate_s, decode_s = (float(curve(elements)) for curve in curves)
    return GroupRecord(
        first=group.first,
        last=group.last,
        elements=elements,
        codec=bucket.codec,
        scheme=bucket.scheme,
        decode=bucket.decode,
        payload_bytes=payload_bytes(
            bucket, [sizes[name] for name in bucket.parameters], problem.ranks, ratio
        ),
        predicted_s=(encode_s, communicate_s, decode_s),
        measured_s=(measured[0], measured[1], measured[2]) if measured else None,
    )


def payload_bytes(bucket: Bucket, sizes: list[int], ranks: int, ratio: float) -> int:
    """Bytes that a rank sends for a bucket in one step, one rank a host, without headers."""
    ring = 2 * (ranks - 1) / ranks
    if bucket.codec == "none":
        return round(ring * 4 * sum(sizes))
    own = make(bucket.codec, **options_of(bucket.codec, ratio)).size_bytes(Segments(sizes))
    if bucket.scheme == "all_reduce":
        return round(ring * own)
    flags = 2 if bucket.scheme == "divisible" else 1
    sent = ring * own if bucket.scheme == "divisible" else (ranks - 1) * own
    return round(sent) + flags * (ranks - 1) * Part.FLAG_BYTES
