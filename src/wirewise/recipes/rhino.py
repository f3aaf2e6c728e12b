"""Rhino: a model that a planner splits over ranks, next to ways in which users split it themselves.

S. Zhang, L. Diao, S. Wang et al.: Auto-Parallelizing Large Models with Rhino, arXiv 2302.08141. Composes
`runtime.joint_graph` (capture), `planners.parallel` (the plan), `sim` (predictions), `runtime.parallel` (training) and
`lab` (the network). Numbers, messages and links are real; products take as long as on the accelerator that they stand
for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from wirewise.cost.links import TCP_PAYLOAD, Links
from wirewise.files import owns_folder
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.plans import ParallelPlan, save
from wirewise.recipes.parallel_models import MODELS
from wirewise.recipes.rhino_job import SIZES, WAYS, RhinoJob, RhinoWish
from wirewise.recipes.rhino_ways import possible
from wirewise.recipes.rhino_worker import GRAPH, one_device
from wirewise.results import ParallelRecord, ParallelRun, ParallelTimes
from wirewise.runtime.joint_graph import capture_step
from wirewise.sim.parallel_steps import StepSimulator
from wirewise.topology import lab_hosts
from wirewise.trace.operator_graph import OperatorGraph, write_operator_graph
from wirewise.trials.start import open_network, run_ranks

__all__ = ["graph_of", "links_of", "plan_file", "predicted_s", "run", "summarise", "train"]

_EQUAL = 1e-5
"""Difference of losses, as a share, up to which they count as equal."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "scaled_dot_product")


@owns_folder
def run(wish: RhinoWish, folder: Path, say: Callable[[str], None]) -> ParallelRun:
    """Plan a model and train it in all ways in turns, a rank on each host of a lab.

    Args:
        wish: What to train on which hosts.
        folder: Takes the job, graphs, the plan, logs and what was measured.
        say: Called with messages on the progress.

    Raises:
        LabError: No lab can be built here.
        PlanError: No plan has room.
        PeerError: A rank failed; the message holds its last words.
    """
    start_s = time.perf_counter()
    graph = graph_of(wish)
    captured_s = time.perf_counter()
    room = 1e6 * wish.memory_mb if wish.memory_mb else float("inf")
    problem = ParallelProblem(graph=graph, links=links_of(wish), memory_bytes=room, states=1.0)
    plan = make_plan(problem, level=wish.level, stages=wish.stages or None, seed=wish.seed)
    planning_s = time.perf_counter() - captured_s
    say(plan.headline)
    save(plan, plan_file(folder))
    ways = tuple(way for way in wish.against if possible(way, wish.model))
    job = RhinoJob(
        wish=wish, sizes=SIZES[wish.model], plans={"rhino": plan}, ways=ways, timeout_s=wish.timeout_s
    )
    found, losses = train(job, graph, folder, say)
    seconds = (captured_s - start_s, planning_s)
    return summarise(job, graph, found, losses, seconds)


def plan_file(folder: Path) -> Path:
    """File of the plan in the folder of a run."""
    return folder / "plan.json"


def graph_of(wish: RhinoWish, sizes: Mapping[str, int] | None = None) -> OperatorGraph:
    """The model's training step with the seconds that the job's accelerator takes.

    Args:
        wish: Model and accelerator.
        sizes: Arguments of the model; None: those of a run.
    """
    step = capture_step(*MODELS[wish.model](**(sizes or SIZES[wish.model]), seed=wish.seed))
    nodes = tuple(
        msgspec.structs.replace(node, time_s=node.flops / (1e9 * wish.gflops))
        if any(word in node.op for word in _PRODUCTS)
        else node
        for node in step.graph.nodes
    )
    return msgspec.structs.replace(step.graph, nodes=nodes, device=f"emulated, {wish.gflops:g} GFLOP/s")


def links_of(wish: RhinoWish) -> Links:
    """Links of the lab's ranks with what TCP leaves of them."""
    return Links.of(lab_hosts(wish.rates), payload=TCP_PAYLOAD)


def predicted_s(plan: ParallelPlan, graph: OperatorGraph, wish: RhinoWish) -> float:
    """Simulated seconds of a step."""
    return StepSimulator(plan, graph, links_of(wish)).step().seconds


def train(
    job: RhinoJob, graph: OperatorGraph, folder: Path, say: Callable[[str], None]
) -> tuple[dict[str, ParallelTimes], list[float]]:
    """Train in all ways of a job in turns; what was measured, and the losses of one device.

    Args:
        job: Plans and other ways.
        graph: Training step of the whole batch.
        folder: Takes the job, graphs, logs and what was measured.
        say: Called with messages on the progress.

    Raises:
        LabError: No lab can be built here.
        PeerError: A rank failed; the message holds its last words.
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
    with open_network("lab", len(rates), rates[0], dict(enumerate(rates))) as network:
        worker = "wirewise.recipes.rhino_worker"
        found = run_ranks(
            worker,
            folder,
            dict[str, ParallelTimes],
            network=network,
            ranks=len(rates),
            job=job,
            log=say,
        )
    return found, losses


def summarise(
    job: RhinoJob,
    graph: OperatorGraph,
    found: Mapping[str, ParallelTimes],
    losses: Sequence[float],
    seconds: tuple[float, float],
) -> ParallelRun:
    """All ways next to each other.

    Args:
        job: Plans and other ways.
        graph: Training step of the whole batch.
        found: What the ranks measured.
        losses: Losses of one device.
        seconds: Seconds of capture and of planning.
    """
    records = {name: _record(job, graph, name, one, losses) for name, one in found.items()}
    plan = next(iter(job.plans.values()))
    return ParallelRun(
        model=job.wish.model,
        parameters=sum(node.elements for node in graph.nodes if node.op == "parameter"),
        emulated=f"products take as long as at {job.wish.gflops:g} GFLOP/s; numbers, messages and links are real",
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
    job: RhinoJob, graph: OperatorGraph, name: str, one: ParallelTimes, losses: Sequence[float]
) -> ParallelRecord:
    plan = job.plans.get(name)
    error = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one.losses, losses, strict=True))
    return ParallelRecord(
        step_s=statistics.median(one.steps_s),
        steps_s=tuple(one.steps_s),
        predicted_step_s=None if plan is None else predicted_s(plan, graph, job.wish),
        bytes_sent=round(statistics.median(one.sent_bytes)) if one.sent_bytes else None,
        predicted_bytes=None if plan is None else plan.collective_bytes,
        loss_equal=error <= _EQUAL,
        loss_error=error,
        meaning=WAYS.get(name, "" if plan is None else plan.headline),
    )
