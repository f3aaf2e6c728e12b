"""`wirewise plan placement`: on which host each task of mini-batch GNN training runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
import typer

from wirewise.cli.output import JsonOption, print_table, write_json
from wirewise.cli.plan_cache import numbers, sampling_problem
from wirewise.cli.topo import open_topology
from wirewise.errors import InputError, PlanError
from wirewise.graph import load
from wirewise.planners.placement import METHODS, PlacementProblem, from_graph, plan, problem_of
from wirewise.plans import PlacementPlan, save
from wirewise.plans.placement import FlowPolicy
from wirewise.report.figures import seconds
from wirewise.topology import Topology
from wirewise.trace.tasks import TaskSet, read_tasks, write_tasks

__all__ = ["placement"]

_FLOAT_BYTES = 4
_SHOWN: tuple[FlowPolicy, ...] = ("iter", "oes")
"""Policies that every comparison shows."""


def placement(
    topology: Annotated[str, typer.Option(help="A preset (`wirewise topo list`) or a file.")],
    job: Annotated[
        Path | None, typer.Option(help="JSON of tasks, flows and times; or give --dataset.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Training on this dataset (name or .npz file).")] = None,
    method: Annotated[str, typer.Option("--with", help=f"{', '.join(METHODS)}.")] = "gnn-tasks",
    policy: Annotated[str, typer.Option(help=f"Of flows: {', '.join(get_args(FlowPolicy))}.")] = "iter",
    steps: Annotated[int, typer.Option(min=0, help="Of the search.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of random choices.")] = 0,
    fanouts: Annotated[str, typer.Option(help="Of --dataset: neighbours of a node in each hop.")] = "15,10,5",
    batch_size: Annotated[int, typer.Option(min=1, help="Of --dataset: seeds of a worker's batch.")] = 64,
    workers_per_host: Annotated[int, typer.Option(min=1, help="Of --dataset.")] = 1,
    samplers: Annotated[int, typer.Option(min=1, help="Of --dataset: of each worker.")] = 2,
    servers: Annotated[int, typer.Option(min=1, help="Of --dataset: parameter servers.")] = 1,
    room: Annotated[
        int | None,
        typer.Option(min=1, help="Of --dataset: workers that fit a host; one more than there are."),
    ] = None,
    hidden: Annotated[int, typer.Option(min=1, help="Of --dataset: width of hidden rows.")] = 256,
    sampler_s: Annotated[float, typer.Option(min=0, help="Of --dataset: seconds to sample.")] = 0.005,
    worker_s: Annotated[float, typer.Option(min=0, help="Of --dataset: seconds to train a batch.")] = 0.02,
    parts: Annotated[str, typer.Option(help="Of --dataset: partitioner.")] = "metis",
    volumes: Annotated[
        str,
        typer.Option(help="Of --dataset: drawn (the first batches) or expected (by inclusion probability)."),
    ] = "drawn",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File that takes the plan.")] = None,
    job_out: Annotated[
        Path | None, typer.Option(help="File that takes the tasks and flows, for `wirewise check --job`.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Choose hosts for the samplers, workers and parameter servers of GNN training.

    With --dataset, bytes are those of the batches that training will draw: nothing has to run before. All times are
    simulated.
    """
    if (job is None) == (dataset is None):
        raise InputError("give --job FILE with tasks and flows, or --dataset NAME to expect them; not both")
    if policy not in get_args(FlowPolicy):
        raise InputError(
            f"unknown flow policy {policy!r}; expected one of: {', '.join(get_args(FlowPolicy))}"
        )
    hosts = open_topology(topology)
    if job is not None:
        tasks = read_tasks(job)
    else:
        hops = numbers("--fanouts", fanouts, int)
        counts = {
            "workers_per_host": workers_per_host,
            "samplers": samplers,
            "servers": servers,
            "room": room,
        }
        others = {"sampler_s": sampler_s, "worker_s": worker_s, "volumes": volumes}
        tasks = _expected(str(dataset), hosts, hops, batch_size, hidden, parts, seed, counts | others)
    problem = problem_of(tasks, hosts)
    found = plan(problem, method=method, policy=policy, steps=steps, seed=seed)  # type: ignore[arg-type]
    if out is not None:
        save(found, out)
    if job_out is not None:
        write_tasks(tasks, job_out)
    compared = _compare(problem, found, seed)
    write_json(json, {"plan": msgspec.to_builtins(found), "simulated": compared})
    if json != "-":
        _tell(found, compared)


def _expected(
    dataset: str,
    topology: Topology,
    fanouts: list[int],
    batch_size: int,
    hidden: int,
    parts: str,
    seed: int,
    settings: dict[str, Any],
) -> TaskSet:
    """Tasks that train on a dataset cut into a part for each host."""
    graph = load(dataset, seed=seed)
    graph = graph.undirected() if graph.directed else graph
    hosts = [host.name for host in topology.hosts]
    sampled = sampling_problem(graph, len(hosts), parts, fanouts, batch_size, "cumulative", 1.0, seed)
    widths = [graph.num_features, *[hidden] * (len(fanouts) - 1), graph.num_classes]
    # Each layer of GraphSAGE has a matrix for a node and one for its neighbours.
    model_bytes = _FLOAT_BYTES * sum(2 * a * b for a, b in pairwise(widths))
    row_bytes = _FLOAT_BYTES * (graph.num_features + 1)
    return from_graph(sampled, hosts, row_bytes=row_bytes, model_bytes=model_bytes, **settings)


def _compare(problem: PlacementProblem, found: PlacementPlan, seed: int) -> dict[str, dict[str, float]]:
    """Simulated seconds of this plan and of the rules, by policy, and the bound of each placement."""
    plans = {found.planner: found}
    for rule in METHODS[1:]:
        try:
            plans.setdefault(rule, plan(problem, method=rule, policy=found.policy, seed=seed))
        except PlanError:
            continue
    compared = {}
    for name, one in plans.items():
        places = np.array([task.host for task in one.tasks])
        times: dict[str, float] = {
            policy: problem.simulator.seconds(places, policy) for policy in (*_SHOWN, found.policy)
        }
        compared[name] = {**times, "lower_bound_s": one.lower_bound_s}
    return compared


def _tell(found: PlacementPlan, compared: dict[str, dict[str, float]]) -> None:
    said = (
        f"{found.iterations} iterations of {len(found.tasks)} tasks on {found.world_size} hosts take "
        f"{seconds(found.predicted_s)} simulated under {found.policy}"
    )
    if found.colocated_s > 0:
        gain = 1 - found.predicted_s / found.colocated_s
        said += f", {gain:.1%} less than colocated ({seconds(found.colocated_s)})"
    over = found.predicted_s / found.lower_bound_s if found.lower_bound_s > 0 else 1.0
    typer.echo(f"{said}; {over:.2f} times the bound of these places.")
    print_table(*found.table())
    titles = [
        "placement",
        *(f"{name} s" for name in next(iter(compared.values())) if name != "lower_bound_s"),
    ]
    rows = [[name, *(f"{value:.4g}" for value in times.values())] for name, times in compared.items()]
    print_table([*titles, "lower bound s"], rows)
    typer.echo(
        f"Whatever the sizes, oes takes at most {found.competitive_ratio:.0f} times the shortest possible time here, "
        "because so many flows can share an interface."
    )
