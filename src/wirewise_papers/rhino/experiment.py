"""Rhino: a planner's parallelization of a model, compared with manual ones.

S. Zhang, L. Diao, S. Wang et al.: Auto-Parallelizing Large Models with Rhino, arXiv 2302.08141. Composes
`runtime.joint_graph` (capture), `cost` (links that explain measured collectives), `planners.parallel` (the plan),
`sim` (predictions), `runtime.parallel` (training) and `lab` or Slurm (the network). Numbers, messages and links are
real; operators take as long as on an accelerator of the run's figures: the rest is slept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path

import msgspec
import torch

from wirewise.cost.links import Links
from wirewise.files import owns_folder
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.planners.parallel.rhino.users_ways import plan_of_way
from wirewise.plans import ParallelPlan, save
from wirewise.runtime.joint_graph import capture_step
from wirewise.sim.operator_times import roofline_times
from wirewise.sim.parallel_steps import StepSimulator
from wirewise.trace.operator_graph import OperatorGraph, write_operator_graph
from wirewise.trials.start import open_network, run_ranks
from wirewise_papers.own_links import resolve_links
from wirewise_papers.parallel_models import MODELS
from wirewise_papers.rhino.deployed import deployment_of
from wirewise_papers.rhino.job import CUTS, SIZES, WAYS, RhinoJob, RhinoOptions
from wirewise_papers.rhino.links import measured_links
from wirewise_papers.rhino.records import ParallelRecord, ParallelRun, ParallelTimes
from wirewise_papers.rhino.ways import is_supported
from wirewise_papers.rhino.worker import GRAPH, one_device

__all__ = ["graph_of", "plan_file", "predicted_s", "run", "summarise", "train"]

_EQUAL = 1e-5
"""Difference of losses, as a share, up to which they count as equal."""
_UPDATE_TENSORS = (2, 3, 3)
"""Tensors of the size of all parameters that each operator of SGD with momentum reads and writes."""


@owns_folder
def run(
    options: RhinoOptions, folder: Path, log: Callable[[str], None], *, links: Links | None = None
) -> ParallelRun:
    """Plan a model and train it by all methods alternately, one rank on each host of a lab or of a Slurm allocation.

    Args:
        options: Model, hosts and methods.
        folder: Folder for the job, graphs, plan, logs and measurements.
        log: Called with progress messages.
        links: Fitted links between such hosts (`links.measured_links`). Defaults to measuring them first.

    Raises:
        InputError: The allocation has too few hosts.
        LabError: No lab can be built here.
        PlanError: No plan fits into memory.
        PeerError: A rank failed; the message quotes the end of its output.
    """
    options = resolve_links(options, options.hosts, log)
    start_s = time.perf_counter()
    graph = graph_of(options)
    capture_s = time.perf_counter() - start_s
    empty = RhinoJob(wish=options, sizes=SIZES[options.model], plans={}, timeout_s=options.timeout_s)
    links = measured_links(empty, folder, log) if links is None else links
    start_s = time.perf_counter()
    room = 1e6 * options.memory_mb if options.memory_mb else float("inf")
    problem = ParallelProblem(graph=graph, links=links, memory_bytes=room, states=1.0, cuts=CUTS)
    plan = make_plan(problem, level=options.level, stages=options.stages or None, seed=options.seed)
    planning_s = time.perf_counter() - start_s
    log(plan.headline)
    save(plan, plan_file(folder))
    ways = tuple(way for way in options.against if is_supported(way, options.model))
    deployment = deployment_of(options) if "tag" in ways else None
    job = msgspec.structs.replace(empty, plans={"rhino": plan}, ways=ways, deployment=deployment)
    found, losses = train(job, graph, folder, log)
    return summarise(job, graph, links, found, losses, (capture_s, planning_s))


def plan_file(folder: Path) -> Path:
    """File of the plan in the folder of a run."""
    return folder / "plan.json"


def graph_of(options: RhinoOptions, sizes: Mapping[str, int] | None = None) -> OperatorGraph:
    """Operator graph of the model's training step, with times of the job's accelerator.

    Args:
        options: Model and accelerator.
        sizes: Arguments of the model. Defaults to those of a run.
    """
    captured = _captured(options.model, options.seed, tuple((sizes or SIZES[options.model]).items()))
    return msgspec.structs.replace(roofline_times(captured, options.device), device="emulated")


@cache
def _captured(model: str, seed: int, sizes: tuple[tuple[str, int], ...]) -> OperatorGraph:
    return capture_step(*MODELS[model](**dict(sizes), seed=seed)).graph


def predicted_s(plan: ParallelPlan, graph: OperatorGraph, links: Links, options: RhinoOptions) -> float:
    """Simulated time of a step, including the update of the largest stage's weights, in seconds."""
    held = [0.0] * plan.stages
    for number, node in enumerate(graph.nodes):
        if node.op == "parameter":
            cuts = zip(plan.placement_of(number), plan.mesh, strict=True)
            held[plan.stage_of[number]] += node.output_bytes / prod(n for one, n in cuts if one.kind == "S")
    update_s = sum(options.device.seconds(0.0, tensors * max(held), 4) for tensors in _UPDATE_TENSORS)
    return StepSimulator(plan, graph, links).step().seconds + update_s


def train(
    job: RhinoJob, graph: OperatorGraph, folder: Path, log: Callable[[str], None]
) -> tuple[dict[str, ParallelTimes], list[float]]:
    """Train by all methods of a job, interleaved; returns the measurements and the losses of one device.

    Args:
        job: Plans and other methods.
        graph: Training step of the whole batch.
        folder: Folder for the job, graphs, logs and measurements.
        log: Called with progress messages.

    Raises:
        LabError: No lab can be built here.
        PeerError: A rank failed; the message quotes the end of its output.
    """
    write_operator_graph(graph, folder / GRAPH.format(1))
    for count in {plan.microbatches for plan in job.plans.values()} - {1}:
        part = capture_step(*MODELS[job.wish.model](**job.arguments(microbatches=count)))
        write_operator_graph(part.graph, folder / GRAPH.format(count))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        losses = one_device(job)
    finally:
        torch.set_num_threads(threads)
    rates = job.wish.rates
    with open_network(job.wish.network, len(rates), rates) as network:
        worker = "wirewise_papers.rhino.worker"
        found = run_ranks(
            worker,
            folder,
            dict[str, ParallelTimes],
            network=network,
            ranks=len(rates),
            job=job,
            log=log,
        )
    return found, losses


def summarise(
    job: RhinoJob,
    graph: OperatorGraph,
    links: Links,
    measurements: Mapping[str, ParallelTimes],
    losses: Sequence[float],
    seconds: tuple[float, float],
) -> ParallelRun:
    """Compare all methods.

    Args:
        job: Plans and other methods.
        graph: Training step of the whole batch.
        links: Links between the ranks, for predictions.
        measurements: Measurements of the ranks.
        losses: Losses of one device.
        seconds: Time of capture and of planning, in seconds.
    """
    records = {name: _record(job, graph, links, name, one, losses) for name, one in measurements.items()}
    plan = next(iter(job.plans.values()))
    return ParallelRun(
        model=job.wish.model,
        parameters=sum(node.elements for node in graph.nodes if node.op == "parameter"),
        emulated=f"{job.wish.emulated}; numbers, messages and links are real",
        network="slurm" if job.wish.network == "slurm" else "lab",
        hosts=job.wish.hosts,
        links=job.wish.rates,
        turns=job.wish.turns,
        capture_s=seconds[0],
        planning_s=seconds[1],
        losses=tuple(losses),
        plans=records,
        fastest=min(records, key=lambda name: records[name].step_s),
        choices={one.block or "the model": one.strategy for one in plan.choices},
        why=(*plan.why, *plan.notes),
    )


def _record(
    job: RhinoJob,
    graph: OperatorGraph,
    links: Links,
    name: str,
    one: ParallelTimes,
    losses: Sequence[float],
) -> ParallelRecord:
    # Of what is no plan, what a plan of the same kind takes.
    plan = job.plans.get(name) or plan_of_way(name, graph, links, CUTS)
    predicted = None if plan is None else predicted_s(plan, graph, links, job.wish)
    if name == "tag" and job.deployment is not None:
        predicted = job.deployment.predicted_step_s
    error = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one.losses, losses, strict=True))
    return ParallelRecord(
        step_s=statistics.median(one.steps_s),
        steps_s=tuple(one.steps_s),
        predicted_step_s=predicted,
        bytes_sent=round(statistics.median(one.sent_bytes)) if one.sent_bytes else None,
        predicted_bytes=None if plan is None else plan.collective_bytes,
        loss_equal=error <= _EQUAL,
        loss_error=error,
        meaning=WAYS.get(name, "" if plan is None else plan.headline),
    )
