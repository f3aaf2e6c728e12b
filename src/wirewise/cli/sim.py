"""`wirewise sim`: replay a trace with changes, or predict a job under a plan of any family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from wirewise import plans
from wirewise.cli.options import refuse
from wirewise.cli.output import progress, write_out
from wirewise.cli.requests import Conditions
from wirewise.cli.topo import open_topology
from wirewise.errors import InputError, PlanError
from wirewise.plans import PlacementPlan, Plan, RecoveryPlan
from wirewise.report.figures import seconds, signed
from wirewise.trace import (
    FusionGraph,
    GradientTrace,
    RecoveryTrace,
    StageTrace,
    TaskSet,
    Trace,
    job_file,
    load,
    read_job,
)
from wirewise.trace.thinning import thin_steps

if TYPE_CHECKING:
    from wirewise.cost import Links
    from wirewise.sim import Prediction, ReplayReport
    from wirewise.sim.sampled import SampledTimes
    from wirewise.topology import Topology
    from wirewise.trace import Job

__all__ = ["predict_plan", "simulate"]

_DEVICES = (
    "kernels and what launches them count as compute alike here, and kernels do not tell what they wait for; "
    "`wirewise trace show` keeps host and device apart"
)

_GRAINS: dict[str, tuple[type, ...]] = {
    "bitwidth": (),
    "cache": (),
    "collective": (),
    "fusion": (Trace, GradientTrace, FusionGraph),
    "placement": (TaskSet,),
    "stages": (StageTrace,),
}
"""Kinds of jobs of each family, none where plans are predicted without one; other families' lowerings tell."""

_STRAGGLERS = ("stragglers", "samples", "seed")
_UNIFORM = ("topology", "bandwidth", "ranks_per_host", "costs")
_TAKEN: dict[str | type, tuple[str, ...]] = {
    "bitwidth": ("topology",),
    "cache": ("topology", "row_bytes"),
    "collective": ("topology",),
    Trace: ("topology", "costs", *_STRAGGLERS),
    GradientTrace: _UNIFORM,
    FusionGraph: _UNIFORM,
    TaskSet: ("topology",),
    StageTrace: ("topology", *_STRAGGLERS),
    RecoveryTrace: ("topology", "failures", "samples", "seed"),
}
"""Options by the job, or by the family where there is none."""


def simulate(sources: Sequence[Path] | None, what_if: str, json: str | None) -> None:
    """Replay a trace, and print and write the prediction.

    Raises:
        InputError: No source was given, or one cannot be read.
    """
    if not sources:
        raise InputError("nothing to simulate; give a run folder, files of torch.profiler, or --plan FILE")
    from wirewise.report import replay_rows
    from wirewise.report.replay_json import report_object
    from wirewise.sim import parse, record, replay_steps
    from wirewise.sim.analysis import baselines

    # A change that is not understood is refused before the work.
    changes = parse(what_if)
    with progress() as log:
        trace = thin_steps(load(sources, log))
    if any(op.stream for rank in trace.ranks for op in rank.ops):
        trace.notes.insert(0, _DEVICES)
    recording = record(trace)
    report = replay_steps(
        recording.steps, recording.links, interference=recording.interference, what_if=changes
    )
    simple = baselines(recording)
    write_out(
        json,
        report_object(trace, report, recording.links, simple),
        _sentence(report, what_if),
        "",
        replay_rows.breakdown_rows(report.breakdown, report.what_if),
        "",
        replay_rows.critical_rows(report.what_if or report),
        "",
        replay_rows.baseline_rows(report, simple),
        *(f"Note: {note}" for note in trace.notes),
    )


def _sentence(report: ReplayReport, what_if: str) -> str:
    low, high = report.error_ci95
    said = (
        f"A step of {report.ranks} ranks takes "
        f"{seconds(report.measured_step_s)} measured and {seconds(report.predicted_step_s)} replayed (error "
        f"{signed(report.error)}, 95 % interval {signed(low)} to {signed(high)}, {report.steps} steps)"
    )
    if report.what_if is None:
        return f"{said}."
    after = report.what_if
    low, high = after.ci95_s
    return (
        f"{said}; with {what_if} it would take {seconds(after.predicted_step_s)} (95 % interval {seconds(low)} to "
        f"{seconds(high)}, {signed(after.predicted_step_s / report.predicted_step_s - 1)})."
    )


def predict_plan(
    source: Path, job_files: Sequence[Path], what_if: str, settings: Conditions, json: str | None
) -> None:
    """Predict the job under a plan, and write and print the prediction.

    Raises:
        InputError: A file is unusable, or an option is meaningless here or missing.
        PlanError: The file holds no plan, or the plan does not fit the job or the topology.
    """
    if what_if:
        raise InputError(
            "--what-if changes a replayed trace and says nothing about --plan FILE; give one of them"
        )
    plan = plans.load(source)
    job = _job(plan, job_files)
    if isinstance(job, Trace):
        job = thin_steps(job)
    what = f"a {plan.family} plan" if job is None else f"a {plan.family} plan and {job_file(type(job))}"
    taken = (*_TAKEN.get(plan.family if job is None else type(job), ("topology",)), "html")
    refuse(
        settings,
        [name for name in settings.__struct_fields__ if name not in taken],
        f"says nothing about {what}; expected only {', '.join(_option(name) for name in taken)}",
    )
    if settings.stragglers is None and settings.failures is None:
        refuse(settings, ["samples", "seed"], "says how to draw; expected --stragglers or --failures with it")
    found = _predicted(plan, job, settings)
    drawn = _sampled(plan, job, settings)
    if settings.html is not None:
        from wirewise.report.prediction_page import prediction_html
        from wirewise.report.shell import write_page

        write_page(prediction_html(found, plan), settings.html)
    said = [
        found.summary(),
        *([_distribution(drawn)] if drawn else []),
        *([f"Page: {settings.html}"] if settings.html is not None else []),
    ]
    said += [f"Note: {note}" for note in (job.notes if isinstance(job, Trace) else ())]
    names = ("family", "planner", "unit", "step_s", "breakdown", "phases_s", "classes", "source")
    told = {name: msgspec.to_builtins(getattr(found, name)) for name in names}
    write_out(json, told | ({"sampled": msgspec.to_builtins(drawn)} if drawn else {}), *said)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _job(plan: Plan, files: Sequence[Path]) -> Any:
    if plan.family not in _GRAINS:
        return read_job(files) if files else None
    kinds = _GRAINS[plan.family]
    expected = " or ".join(map(job_file, kinds))
    if not kinds and files:
        raise InputError(f"got {files[0]} as the job of a {plan.family} plan, which needs none; leave it out")
    if kinds and not files:
        raise InputError(f"a {plan.family} plan is made for a job; expected {expected}")
    if not kinds:
        return None
    job = read_job(files)
    if not isinstance(job, kinds):
        raise InputError(
            f"{files[0]} is {job_file(type(job))}, a job that a {plan.family} plan is not made for; expected "
            f"{expected}"
        )
    return job


def _predicted(plan: Plan, job: Job | None, settings: Conditions) -> Prediction:
    from wirewise.cost.gradients import load_costs
    from wirewise.sim import BatchTimes, predict

    described: Any = job
    if plan.family == "cache":
        if settings.row_bytes is None:
            raise InputError("a cache plan counts rows; expected --row-bytes N, 4 for each float32 feature")
        described = BatchTimes(row_bytes=settings.row_bytes)
    conditions = {} if settings.costs is None else {"costs": load_costs(settings.costs)}
    return predict(plan, described, _links(plan, job, settings), **conditions)


def _sampled(plan: Plan, job: Job | None, settings: Conditions) -> SampledTimes | None:
    """The distribution that was asked for; None: none was."""
    if settings.failures is None and settings.stragglers is None:
        return None
    from wirewise.cost.gradients import load_costs
    from wirewise.sim.sampled import parse_stragglers, sample_failures, sample_stragglers

    how: Any = {name: value for name in ("samples", "seed") if (value := getattr(settings, name)) is not None}
    links: Any = _links(plan, job, settings)
    if settings.failures is not None:
        assert isinstance(plan, RecoveryPlan) and isinstance(job, RecoveryTrace)
        return sample_failures(plan, job, links, settings.failures, **how)
    assert settings.stragglers is not None
    how |= {} if settings.costs is None else {"costs": load_costs(settings.costs)}
    return sample_stragglers(plan, job, links, parse_stragglers(settings.stragglers), **how)


def _distribution(drawn: SampledTimes) -> str:
    mean, median = (
        f"{seconds(value)} (95 % interval {seconds(low)} to {seconds(high)})"
        for value, (low, high) in (
            (drawn.mean_s, drawn.mean_ci95_s),
            (drawn.median_s, drawn.median_ci95_s),
        )
    )
    return (
        f"In {drawn.samples} samples the mean is {mean}, the median {median}, and 95 % are within "
        f"{seconds(drawn.p95_s)}."
    )


def _links(plan: Plan, job: Job | None, settings: Conditions) -> Links | Topology | None:
    """Links that the bytes travel over; None for those of the trace or the costs."""
    from wirewise.cli.plan_gradients import uniform
    from wirewise.cost import Links

    if settings.topology is not None:
        refuse(settings, ["bandwidth", "ranks_per_host"], "takes the place of --topology; give one of them")
        topology = open_topology(settings.topology)
        if isinstance(plan, PlacementPlan):
            _check_hosts(plan, topology)
        # A machine by itself has no links between hosts, which the table is about; a program needs only its graph.
        return topology if plan.family == "collective" else Links.of(topology)
    if isinstance(job, GradientTrace | FusionGraph):
        return uniform(plan.world_size, settings.bandwidth, settings.ranks_per_host)
    if isinstance(job, Trace):
        return None
    raise InputError(
        f"nothing says what the bytes of a {plan.family} plan travel over; expected --topology, a preset or a file"
    )


def _check_hosts(plan: PlacementPlan, topology: Topology) -> None:
    from wirewise.planners.placement import host_faults

    for fault in host_faults(plan, tuple(host.name for host in topology.hosts)):
        raise PlanError(fault)
