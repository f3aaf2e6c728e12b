"""`wirewise plan pipeline`: stages of a model, their ranks and their timetable."""

from __future__ import annotations

from collections.abc import Iterator
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
from wirewise.planners import planner as find_planner
from wirewise.plans import StagePlan
from wirewise.report.figures import percent, seconds
from wirewise.sim import Prediction, predict
from wirewise.trace import read_stage_trace
from wirewise.units import format_size, parse_size

__all__ = ["PipelineOptions", "pipeline"]


class PipelineOptions(opt.Options, frozen=True, kw_only=True):
    """Ranks of a pipeline, samples per update, and choices that are fixed."""

    topology: Annotated[str, opt.about("Topology of all ranks, a preset such as lab-4@200mbit, or a file.")]
    batch: Annotated[opt.Count | None, opt.about("Global batch size in samples, by default 8 per rank.")] = (
        None
    )
    memory: Annotated[str | None, opt.about("Memory of a rank, such as 8GiB, by default unlimited.")] = None
    stages: Annotated[opt.Count | None, opt.about("Number of stages, by default the fastest.")] = None
    replicas: Annotated[
        opt.Count | None, opt.about("Number of data-parallel replicas, by default the fastest.")
    ] = None
    width: Annotated[
        opt.Count | None, opt.about("Tensor-parallel width of a stage, by default the fastest.")
    ] = None
    microbatch_size: Annotated[
        opt.Count | None, opt.about("Microbatch size in samples, by default the fastest.")
    ] = None
    recompute: Annotated[
        Literal["yes", "no"] | None,
        opt.about("Recompute activations in the backward pass, by default what is fastest."),
    ] = None
    messages: Annotated[
        Literal["async", "blocking"],
        opt.about("How the closed form counts messages: async, overlapped with compute; or blocking."),
    ] = "async"
    seed: opt.Seed = 0


@with_options
def pipeline(
    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL",
            help="File of `wirewise profile stages`, or FILE.py:NAME of a model to measure now.",
        ),
    ],
    options: PipelineOptions,
    planner: str = planner_option("stages"),
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Split a model into stages, and choose replicas, microbatches and timetable for the fastest update."""
    # A name that nobody knows is refused before files are read.
    find_planner("stages", planner)
    links = Links.of(open_topology(options.topology))
    trace = measure_stages(model) if names_code(model) else read_stage_trace(model)
    found = make_plan(
        StagePlan,
        planner,
        trace,
        links,
        batch=options.batch,
        memory_bytes=None if options.memory is None else parse_size(options.memory),
        stages=options.stages,
        replicas=options.replicas,
        width=options.width,
        microbatch_size=options.microbatch_size,
        recompute=None if options.recompute is None else options.recompute == "yes",
        messages=options.messages,
        seed=options.seed,
    )
    told = predict(found, trace, links) if found.predicted_s > 0 else None
    print_plan(found, out, json, *_summary_lines(found, told), record=_record(found, told))


def _record(found: StagePlan, told: Prediction | None) -> dict[str, object]:
    return {
        "plan": msgspec.to_builtins(found),
        "predicted_s": found.predicted_s,
        "bubble": None if told is None else _bubble(told),
        "stages": len(found.stages),
        "replicas": found.replicas,
        "microbatches": found.microbatches,
        "microbatch_size": found.microbatch_size,
        "recompute": found.stages[0].recompute,
        "predicted_bytes": list(found.predicted_bytes),
        "notes": list(found.notes),
    }


def _bubble(told: Prediction) -> float:
    return 1.0 - told.breakdown.compute_s / told.step_s


def _summary_lines(found: StagePlan, told: Prediction | None) -> Iterator[Said]:
    samples = found.replicas * found.microbatches * found.microbatch_size
    said = f"{found.headline.partition(', an update')[0]}."
    if told is not None:
        said += (
            f" An update of {samples} samples takes {seconds(told.step_s)} simulated, of which the mean rank computes "
            f"{percent(1 - _bubble(told))}."
        )
    yield f"{said} A rank needs at most {format_size(max(found.predicted_bytes))}."
    yield found.table()
    for line in found.notes:
        yield f"Note: {line}."
