"""`wirewise plan parallel`: stages, mesh and shardings for the training step of any model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import msgspec
import typer

from wirewise import options as opt
from wirewise.cli.captured_model import Device, TimedStep, capture_model
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_job import OutOption, make_plan, planner_option, print_plan
from wirewise.cli.profile_stages import names_code
from wirewise.cli.topo import open_topology
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners import planner as find_planner
from wirewise.plans import ParallelPlan
from wirewise.report.figures import percent, seconds
from wirewise.sim.operator_times import roofline_times
from wirewise.trace.operator_graph import read_operator_graph, write_operator_graph
from wirewise.units import format_size, parse_size

__all__ = ["Split", "graph_beside", "parallel"]


def _mesh(text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise InputError(f"--mesh is {text!r}; expected ranks along each dimension, such as 4 or 2x4")
    return tuple(map(int, sizes))


class Split(opt.Options, frozen=True, kw_only=True):
    """Ranks to split a model over, and choices that are fixed."""

    topology: Annotated[str, opt.about("Topology of all ranks, a preset such as lab-4@200mbit, or a file.")]
    batch: Annotated[
        opt.Count | None, opt.about("Samples of a step, for a function with an argument `batch`.")
    ] = None
    memory: Annotated[str | None, opt.about("Memory of a rank, such as 16GB, by default unlimited.")] = None
    level: Annotated[
        Literal["O2", "O3"], opt.about("Search by segments (O2), or of the whole graph at once (O3).")
    ] = "O3"
    stages: Annotated[opt.Count | None, opt.about("Number of pipeline stages, by default the fastest.")] = (
        None
    )
    mesh: Annotated[
        tuple[int, ...] | None,
        opt.about(
            "Shape of the device mesh, such as 2x4, by default the fastest.",
            read=_mesh,
        ),
    ] = None
    microbatches: Annotated[
        opt.Count | None, opt.about("Number of microbatches, by default the fastest.")
    ] = None
    recompute: Annotated[
        str | None, opt.about("Activation recomputation, by default as memory requires.")
    ] = None
    device: Annotated[
        Device,
        opt.about("Source of operator times: cpu measures on this machine, others use a GPU's roofline."),
    ] = "cpu"
    seed: opt.Seed = 0


@with_options
def parallel(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME|GRAPH",
            help="Function that returns a model, its inputs, and a loss(model, inputs) unless the model returns it; "
            "or the graph that was written beside a plan.",
        ),
    ],
    options: Split,
    planner: str = planner_option("parallel"),
    time_budget: Annotated[float | None, typer.Option(help="Search budget, in seconds.")] = None,
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Split the training step of any model over ranks: stages, a mesh, and the sharding of each tensor.

    With --out PLAN.json, the graph of the step is written beside it (PLAN.graph.json).
    """
    # A name that nobody knows is refused before the model is captured.
    find_planner("parallel", planner)
    links = Links.of(open_topology(options.topology))
    job = capture_model(model, options.batch, options.device) if names_code(model) else _read(model, options)
    began = perf_counter()
    found = make_plan(
        ParallelPlan,
        planner,
        job.graph,
        links,
        memory_bytes=None if options.memory is None else parse_size(options.memory),
        level=options.level,
        stages=options.stages,
        mesh=options.mesh,
        microbatches=options.microbatches,
        recompute=options.recompute,
        time_budget_s=time_budget,
        seed=options.seed,
    )
    planning_s = perf_counter() - began
    if out is not None:
        write_operator_graph(job.graph, graph_beside(out))
    notes = list(dict.fromkeys((*job.graph.notes, *found.notes)))
    told = _summary_lines(found, job, planning_s, notes, out)
    print_plan(found, out, json, *told, record=_record(found, job, planning_s, notes))


def graph_beside(plan: Path) -> Path:
    """Path of the graph file that belongs to a plan file."""
    return plan.with_suffix(".graph.json")


def _read(source: str, options: Split) -> TimedStep:
    if options.batch is not None:
        raise InputError(
            f"--batch belongs to a function FILE.py:NAME; {source} is a graph, whose batch is fixed"
        )
    graph = read_operator_graph(source)
    if options.device != "cpu":
        graph = roofline_times(graph, options.device)
    elif graph.time_s <= 0:
        raise InputError(
            f"the operators of {source} have no times; name a GPU whose figures count (--device), or give the function "
            "that makes the model"
        )
    return TimedStep(graph, 0.0, 0.0)


def _record(found: ParallelPlan, job: TimedStep, planning_s: float, notes: list[str]) -> dict[str, Any]:
    return {
        "plan": msgspec.to_builtins(found, str_keys=True),
        "mesh": list(found.mesh),
        "stages": found.stages,
        "microbatches": found.microbatches,
        "predicted_step_s": found.predicted_step_s,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "evenly_shared_s": job.graph.time_s / found.world_size,
        "collective_bytes": found.collective_bytes,
        "memory_bytes": list(found.memory_bytes),
        "planning_s": planning_s,
        "capture_s": job.capture_s,
        "costs_s": job.costs_s,
        "operators": len(job.graph.nodes),
        "choices": [msgspec.to_builtins(one) for one in found.choices],
        "why": list(found.why),
        "notes": notes,
    }


def _summary_lines(
    found: ParallelPlan, job: TimedStep, planning_s: float, notes: list[str], out: Path | None
) -> Iterator[Said]:
    mesh = " x ".join(f"{size} {name}" for size, name in zip(found.mesh, found.mesh_names, strict=True))
    told = (
        f"{found.stages} stage{'s' * (found.stages > 1)} of {mesh}, {found.microbatches} "
        f"microbatch{'es' * (found.microbatches > 1)}: a step takes {seconds(found.predicted_step_s)} simulated, on "
        f"one device {seconds(job.graph.time_s)}, shared evenly and without messages "
        f"{seconds(job.graph.time_s / found.world_size)}"
    )
    if found.bound_s > 0:
        told += f"; the sum of its costs is within {percent(found.gap)} of the least"
    told += f". Ranks send {format_size(found.collective_bytes)} a step"
    if found.memory_bytes:
        told += f"; a rank needs at most {format_size(max(found.memory_bytes))}"
    yield f"{told}."
    yield found.table()
    for line in found.why:
        yield f"Why: {line.removesuffix('.')}."
    for line in notes:
        yield f"Note: {line.removesuffix('.')}."
    yield (
        f"{len(job.graph.nodes)} operators captured in {seconds(job.capture_s)}, their costs in "
        f"{seconds(job.costs_s)}; planned in {seconds(planning_s)}."
    )
    if out is not None:
        yield f"Plan: {out}; graph: {graph_beside(out)}. Picture: wirewise show {out} --html page.html"
