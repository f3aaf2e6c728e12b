"""`wirewise plan recovery`: state sources, logs, checkpoints and spares for a job with occasional failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_job import OutOption, make_plan, planner_option, print_plan
from wirewise.cli.profile_stages import measure_stages, names_code
from wirewise.cli.topo import open_topology
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners import planner as find_planner
from wirewise.plans import RecoveryPlan, load
from wirewise.plans.recovery import CONSISTENCIES
from wirewise.report.figures import percent, seconds
from wirewise.report.recovery_picture import policy_rows
from wirewise.trace import RecoveryTrace, StageTrace, read_job
from wirewise.units import parse_size

__all__ = ["RecoveryOptions", "recovery"]


class RecoveryOptions(opt.Options, frozen=True, kw_only=True):
    """Failure rate of a job, and the budget of its protection."""

    topology: Annotated[str, opt.about("Topology of all ranks, a preset such as lab-4@200mbit, or a file.")]
    mtbf: Annotated[opt.Positive, opt.about("Mean time between failures of the job, in seconds.")] = 3600.0
    pipeline: Annotated[
        Path | None, opt.about("Plan of the stages of a model, by default the quickest 1F1B pipeline.")
    ] = None
    strategy: Annotated[
        Literal["auto", "replica", "log", "checkpoint"],
        opt.about("Where lost state is recovered from, by default the best source of each stage."),
    ] = "auto"
    log_budget: Annotated[
        str | None,
        opt.about("Storage for message logs between two checkpoints, such as 8GiB, by default unlimited."),
    ] = None
    disk_price: Annotated[
        float,
        opt.about("Cost of a byte on disk as a fraction of a byte in memory, within --log-budget.", ge=0),
    ] = 0.1
    spare_memory: Annotated[
        str | None, opt.about("Memory of a spare process, such as 16GiB, by default unlimited.")
    ] = None
    interval: Annotated[opt.Count | None, opt.about("Checkpoint interval in steps, by default the best.")] = (
        None
    )
    rule: Annotated[Literal["best", "young", "daly"], opt.about("Rule for the checkpoint interval.")] = "best"
    consistency: Annotated[
        str,
        opt.about(
            "How a consistent step is restored after a failure in the middle of an optimizer step.",
            words=CONSISTENCIES,
        ),
    ] = "auto"
    helpers: Annotated[
        opt.Natural, opt.about("Surviving ranks that share the recomputation of a lost stage.")
    ] = 0
    parallel_mode: Annotated[
        Literal["auto", "exact", "fast"], opt.about("How gradients of helpers are summed.")
    ] = "auto"
    spares: Annotated[opt.Natural, opt.about("Number of warm spare processes.")] = 1
    heartbeat: Annotated[opt.Positive, opt.about("Heartbeat interval, in seconds.")] = 0.1
    silence_limit: Annotated[
        opt.Positive | None,
        opt.about("Heartbeat timeout, in seconds, by default 5 steps and at least 0.5 s."),
    ] = None
    seed: opt.Seed = 0


@with_options
def recovery(
    job: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL",
            help="Figures that `wirewise run swift` wrote, a file of `wirewise profile stages`, or FILE.py:NAME of a "
            "model to measure now.",
        ),
    ],
    options: RecoveryOptions,
    planner: str = planner_option("recovery"),
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Choose state sources, message logs and the checkpoint interval for the highest goodput."""
    # A name that nobody knows is refused before files are read.
    find_planner("recovery", planner)
    links = Links.of(open_topology(options.topology))
    found = measure_stages(job) if names_code(job) else read_job([job])
    if not isinstance(found, RecoveryTrace | StageTrace):
        raise InputError(
            f"{job} is a {type(found).__name__}; expected figures of a recovery or of the modules of a model"
        )
    if options.pipeline is not None and not isinstance(found, StageTrace):
        raise InputError(f"--pipeline belongs to modules, and {job} says itself what its stages are")
    given = (
        {}
        if options.interval is None
        else dict.fromkeys(("least_interval", "most_interval"), options.interval)
    )
    plan = make_plan(
        RecoveryPlan,
        planner,
        found,
        links,
        pipelined=None if options.pipeline is None else load(options.pipeline),
        mtbf_s=options.mtbf,
        log_bytes=None if options.log_budget is None else parse_size(options.log_budget),
        spare_bytes=None if options.spare_memory is None else parse_size(options.spare_memory),
        disk_price=options.disk_price,
        strategy=options.strategy,
        consistency=options.consistency,
        rule=options.rule,
        helpers=options.helpers,
        parallel_mode=options.parallel_mode,
        spares=options.spares,
        heartbeat_s=options.heartbeat,
        silence_limit_s=options.silence_limit,
        seed=options.seed,
        **given,
    )
    print_plan(plan, out, json, *_summary_lines(plan), record=_record(plan))


def _record(plan: RecoveryPlan) -> dict[str, object]:
    told = ("mtbf_s", "interval_steps", "goodput", "overhead", "predicted_s")
    return {
        **{name: getattr(plan, name) for name in told},
        "strategies": [stage.strategy for stage in plan.stages],
        "recovery_s": [one.total_s for one in plan.recoveries],
        "policies": [msgspec.to_builtins(one) for one in plan.others],
        "notes": list(plan.notes),
        "plan": msgspec.to_builtins(plan),
    }


def _summary_lines(plan: RecoveryPlan) -> Iterator[Said]:
    longest = max(one.total_s for one in plan.recoveries)
    yield (
        f"{plan.headline.partition(', goodput')[0]}. At a failure every {seconds(plan.mtbf_s)}, "
        f"{percent(plan.goodput)} of the time goes into new steps, simulated; protection adds {percent(plan.overhead)} "
        f"to a step, and the longest recovery takes {seconds(longest)} on average."
    )
    yield plan.table()
    yield policy_rows(plan)
    for line in plan.notes:
        yield f"Note: {line}."
