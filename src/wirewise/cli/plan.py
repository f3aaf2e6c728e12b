"""`wirewise plan`: plans for a recorded run, and programs for a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from wirewise import options as opt
from wirewise.cli import (
    plan_cache,
    plan_collective,
    plan_gradients,
    plan_jobs,
    plan_operators,
    plan_parallel,
    plan_pipeline,
    plan_placement,
    plan_recovery,
    plan_reshard,
)
from wirewise.cli.options import refuse, with_options
from wirewise.cli.output import JsonOption
from wirewise.cli.plan_job import OutOption, family_command, make_plan, print_plan
from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.planners import PLANNERS, planner
from wirewise.planners.fusion import FusionProblem, MemorySizes, from_trace, with_memory
from wirewise.plans import FusionPlan
from wirewise.report.figures import seconds
from wirewise.trace import load
from wirewise.units import format_size, parse_size

__all__ = ["app"]

_IN_TRAINING = ("bitwidth",)
"""Families whose jobs no file describes: `wirewise run adaqp` plans them while it trains."""
_OTHER_NAMES = ("stages", "deployment")
"""Families whose command has the name of their planners' folder: `wirewise plan pipeline` and `plan placement`."""


class _Families(TyperGroup):
    """The commands below, and one for each further family of `PLANNERS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(family for family in PLANNERS if family not in (*own, *_IN_TRAINING, *_OTHER_NAMES))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _IN_TRAINING:
            raise InputError(
                f"no file holds the job of a {cmd_name} plan, which is made in training; see wirewise run adaqp"
            )
        own = super().get_command(ctx, cmd_name)
        return family_command(cmd_name) if own is None and cmd_name in self.list_commands(ctx) else own


app = typer.Typer(
    cls=_Families,
    no_args_is_help=True,
    help="Plans: buckets of gradients, programs of collectives, cached rows, places of tasks, tensors between meshes, "
    "stages of pipelines, shardings of any model, jobs of clusters, recovery after failures.",
)
app.command()(plan_collective.collective)
app.command()(plan_cache.cache)
app.command()(plan_placement.placement)
app.command()(plan_pipeline.pipeline)
app.command()(plan_parallel.parallel)
app.command()(plan_recovery.recovery)
app.command()(plan_reshard.reshard)
app.command()(plan_jobs.jobs)


class FusionOptions(opt.Options, frozen=True, kw_only=True):
    """Options of `wirewise plan fusion`."""

    method: Annotated[
        str,
        opt.about(
            f"Planner for the job, one of {', '.join(PLANNERS['fusion'])}; even:K and bucket:MIB have a number; "
            "by default dpro, for --trace cupcake, for --graph disco.",
            option="--with",
        ),
    ] = ""
    memory_budget: Annotated[str | None, opt.about("Memory of a rank, such as 8GiB.", option="--memory")] = (
        None
    )
    memory_sizes: Annotated[
        Path | None, opt.about("JSON of `wirewise.profile.memory_sizes(model, batch)`.")
    ] = None
    time_budget: Annotated[float | None, opt.about("Search budget, in seconds, by default 60.")] = None
    trace: Annotated[
        Path | None, opt.about("JSON with name, elements and gap_us of each gradient, as they get ready.")
    ] = None
    graph: Annotated[
        Path | None,
        opt.about("JSON with the operators of a captured step, as `FusionGraph.save` writes it."),
    ] = None
    estimator: Annotated[
        str | None,
        opt.about(
            "Prices of fused operators: shipped, or a file of `wirewise profile operators`; by default a formula "
            "(--graph)."
        ),
    ] = None


@app.command()
@with_options
def fusion(
    options: FusionOptions,
    settings: plan_gradients.GradientOptions,
    run: Annotated[list[Path] | None, typer.Argument(help="Run folder, or all files of its trace.")] = None,
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Choose gradient buckets, and what to recompute or accumulate to fit the memory.

    With --trace, a file of gradients instead of a run: groups to compress together, and their codecs. With --graph, a
    file of operators: operators to fuse into one kernel, and buckets.
    """
    method, trace, graph = options.method, options.trace, options.graph
    # A name that nobody knows is refused before files are read.
    if method:
        planner("fusion", method.partition(":")[0])
    for option, file, other in (("--trace", trace, graph), ("--graph", graph, trace)):
        if file is not None and (
            run or other or options.memory_budget is not None or options.memory_sizes is not None
        ):
            raise InputError(
                f"{option} {file} takes the place of a run, of its memory and of other files; give one of them"
            )
        if file is not None and options.time_budget is not None:
            raise InputError(
                f"no planner for {option} takes --time-budget; leave it away, or give a run folder"
            )
    if graph is not None:
        plan_operators.operators(graph, method or "disco", settings, options.estimator, out, json)
        return
    if options.estimator is not None:
        raise InputError("--estimator belongs to --graph FILE, and none is given")
    if trace is not None:
        plan_gradients.gradients(trace, method or "cupcake", settings, out, json)
        return
    refuse(
        settings, settings.__struct_fields__, "belongs to --trace FILE or --graph FILE, and neither is given"
    )
    if not run:
        raise InputError(
            "nothing to plan for; give a run folder, --trace with a file of gradients, or --graph with one of operators"
        )
    if options.memory_budget is not None and options.memory_sizes is None:
        raise InputError(
            "a memory budget needs --memory-sizes FILE, because a trace does not say what modules keep; write "
            "json.dumps(wirewise.profile.memory_sizes(model, batch)) into it"
        )
    budget = None if options.memory_budget is None else parse_size(options.memory_budget)
    knobs = {"time_budget_s": options.time_budget, "memory_budget_bytes": budget}
    _recorded(run, method or "dpro", knobs, options.memory_sizes, out, json)


def _recorded(
    run: list[Path],
    method: str,
    knobs: dict[str, Any],
    memory_sizes: Path | None,
    out: Path | None,
    json: str | None,
) -> None:
    trace = load(run)
    problem = from_trace(trace)
    if memory_sizes is not None:
        problem = with_memory(problem, _sizes(memory_sizes))
    found = make_plan(FusionPlan, method, problem, **knobs)
    notes = [*trace.notes, *_notes(problem)]
    record = {
        "plan": msgspec.to_builtins(found),
        "measured_step_s": problem.measured_step_s,
        "replayed_step_s": found.baseline_step_s,
        "planned_step_s": found.predicted_step_s,
        "notes": notes,
    }
    told = (f"Note: {note}." for note in notes)
    print_plan(
        found, out, json, _sentence(problem, found), found.table(), *told, _how_to_apply(out), record=record
    )


def _sizes(path: Path) -> dict[str, MemorySizes]:
    try:
        return decode_json(path.read_bytes(), dict[str, MemorySizes])
    except msgspec.MsgspecError as cause:
        raise InputError(
            f'{path}: {cause}; expected JSON such as {{"layer1.0": {{"saved_bytes": 1e6}}}}'
        ) from cause


def _notes(problem: FusionProblem) -> list[str]:
    if any(m.gradient_bytes > 0 and not m.parameters for m in problem.modules):
        return [
            "the trace does not name the parameters of its buckets, so the plan names backward ops and cannot be "
            "applied; record with `wirewise profile trace`"
        ]
    return []


def _sentence(problem: FusionProblem, found: FusionPlan) -> str:
    change = found.predicted_step_s / found.baseline_step_s - 1.0
    said = (
        f"A step of {found.world_size} ranks takes {seconds(problem.measured_step_s)} measured, "
        f"{seconds(found.baseline_step_s)} replayed with its buckets, and {seconds(found.predicted_step_s)} simulated "
        f"under the plan ({change:+.1%})"
    )
    if any(module.saved_bytes for module in problem.modules):
        said += f"; peak memory of a rank: {format_size(found.predicted_memory_bytes)} estimated"
    return f"{said}."


def _how_to_apply(out: Path | None) -> str:
    file = f'"{out}"' if out is not None else '"plan.json"'
    first = "" if out is not None else "Write the plan with -o plan.json. "
    return (
        f"{first}Apply it in the training script: "
        f"model = wirewise.runtime.data_parallel.parallel(model, wirewise.plans.load({file}), optimizer)"
    )
