"""`wirewise plan cache`: which remote features machines keep, and what each policy leaves to fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast, get_args

import numpy as np
import typer

from wirewise.cli.output import JsonOption, print_table, write_json
from wirewise.cli.plan_job import make_plan
from wirewise.errors import InputError
from wirewise.graph import GraphData, load, partition
from wirewise.graph.sampling.sampler import check_used_hops
from wirewise.planners import PLANNERS, planner
from wirewise.planners.cache import POLICIES, CacheProblem, Share, balanced, budgets_of, plans
from wirewise.plans import CachePlan, save
from wirewise.units import format_size

__all__ = ["cache", "numbers", "sampling_problem"]

_FLOAT_BYTES = 4


def cache(
    dataset: Annotated[
        str, typer.Option(help="Dataset name (`wirewise data list`) or path of an .npz file.")
    ] = "debian",
    workers: Annotated[int, typer.Option(min=1, help="Machines, a part of the features each.")] = 4,
    fanouts: Annotated[str, typer.Option(help="Neighbours of a node in each hop; -1: all.")] = "15,10,5",
    batch_size: Annotated[int, typer.Option(min=1, help="Seeds of a machine's batch.")] = 64,
    alpha: Annotated[
        str, typer.Option(help="Share of all nodes that the caches hold together; several by comma.")
    ] = "0.1",
    policy: Annotated[str, typer.Option(help=f"{', '.join(PLANNERS['cache'])}, or all.")] = "vip",
    share: Annotated[
        str,
        typer.Option(
            help=f"{' or '.join(get_args(Share))}: the same rows on each machine, or what the busiest link needs."
        ),
    ] = "equal",
    parts: Annotated[str, typer.Option(help="Partitioner, as of `wirewise data partition`.")] = "metis",
    semantics: Annotated[
        str, typer.Option(help="cumulative or frontier: what a hop expands.")
    ] = "cumulative",
    train_share: Annotated[
        float, typer.Option(help="Use so much of the training nodes, drawn at random.")
    ] = 1.0,
    directed: Annotated[
        bool, typer.Option(help="Draw along edges as they are; otherwise in both directions.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of partition and draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File that takes the plan of the first policy and alpha."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Choose the features of other machines' nodes that each machine keeps during mini-batch training.

    Rows are expected ones, from inclusion probabilities corrected by two sampled epochs.
    """
    alphas = numbers("--alpha", alpha, float)
    names = list(PLANNERS["cache"]) if policy == "all" else [word.strip() for word in policy.split(",")]
    for name in names:
        planner("cache", name)
    graph = load(dataset, seed=seed)
    if graph.directed and not directed:
        graph = graph.undirected()
    problem = sampling_problem(
        graph, workers, parts, numbers("--fanouts", fanouts, int), batch_size, semantics, train_share, seed
    )
    found = {name: _planned(problem, name, alphas, cast(Share, share)) for name in names}
    first = found[names[0]][alphas[0]]
    bounds = {a: balanced(problem, problem.expected, sum(budgets_of(problem, a))).lower_bound for a in alphas}
    if out is not None:
        save(first, out)
    row_bytes = _FLOAT_BYTES * graph.num_features
    write_json(json, _record(found, bounds, first, graph, row_bytes))
    if json == "-":
        return
    needed = sum(sum(machine.needed) for machine in first.machines)
    typer.echo(
        f"A batch of {batch_size} seeds on each of {workers} machines needs {needed:.0f} rows of other machines, "
        f"{format_size(needed * row_bytes)} of float32. Left to fetch:"
    )
    rows = [
        [
            name,
            *(
                f"{by_alpha[a].remaining:.3f}  {format_size(needed * by_alpha[a].remaining * row_bytes)}"
                for a in alphas
            ),
        ]
        for name, by_alpha in found.items()
    ]
    print_table(["policy", *(f"alpha {a:g}" for a in alphas)], rows)
    received, sent = _busiest(first)
    typer.echo(
        f"{names[0]} at alpha {alphas[0]:g}: a machine fetches at most {received:.0f} rows a batch and sends at most "
        f"{sent:.0f}; with as many cached rows in all, no plan has a busiest link of less than {bounds[alphas[0]]:.0f}."
    )
    if out is not None:
        typer.echo(f"Plan of {names[0]} at alpha {alphas[0]:g}: {out}")


def _planned(problem: CacheProblem, name: str, alphas: list[float], share: Share) -> dict[float, CachePlan]:
    """Plans by alpha; those of our own policies compute their scores once."""
    if name in POLICIES:
        return plans(problem, alphas, [name], share=share)[name]
    return {alpha: make_plan(CachePlan, name, problem, alpha=alpha, share=share) for alpha in alphas}


def numbers(option: str, text: str, kind: type) -> list[Any]:
    """Numbers by comma.

    Raises:
        InputError: The text holds something else; the message names the option.
    """
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError as cause:
        raise InputError(f"{option} is {text!r}; expected numbers by comma, such as 15,10,5") from cause


def sampling_problem(
    graph: GraphData,
    workers: int,
    parts: str,
    fanouts: list[int],
    batch_size: int,
    semantics: str,
    train_share: float,
    seed: int,
) -> CacheProblem:
    """A graph cut into parts, and training nodes of each.

    Raises:
        InputError: A share of training nodes out of range, a hop of no neighbours, or a graph without training nodes.
    """
    if not 0 < train_share <= 1:
        raise InputError(f"--train-share is {train_share}; expected a share above 0 and at most 1")
    check_used_hops(fanouts, "--fanouts")
    owner = np.zeros(graph.num_nodes, np.int64)
    if workers > 1:
        owner = partition(graph, workers, method=parts, seed=seed).astype(np.int64)
    train = np.flatnonzero(graph.split == 0)
    if train_share < 1:
        train = np.random.default_rng(seed).choice(
            train, max(int(train_share * len(train)), 1), replace=False
        )
    if not len(train):
        raise InputError(f"{graph.name} has no training nodes; expected some with split 0")
    return CacheProblem(
        # Which rows are needed depends on who is whose neighbour, not on what edges carry.
        edges=graph.in_edges.without_data(),
        owner=owner,
        train=tuple(np.sort(train[owner[train] == machine]) for machine in range(workers)),
        batch_size=batch_size,
        fanouts=tuple(fanouts),
        semantics=semantics,
        seed=seed,
    )


def _busiest(plan: CachePlan) -> tuple[float, float]:
    """Rows a batch of the machine that fetches most, and of the one that sends most."""
    rows = plan.fetched
    return float(rows.sum(axis=1).max()), float(rows.sum(axis=0).max())


def _record(
    found: dict[str, dict[float, CachePlan]],
    bounds: dict[float, float],
    first: CachePlan,
    graph: GraphData,
    row_bytes: int,
) -> dict[str, Any]:
    return {
        "dataset": graph.name,
        "nodes": graph.num_nodes,
        "workers": first.world_size,
        "row_bytes": row_bytes,
        "rows_needed": [sum(machine.needed) for machine in first.machines],
        "policies": {
            name: {f"{alpha:g}": one.remaining for alpha, one in by_alpha.items()}
            for name, by_alpha in found.items()
        },
        "busiest_rows": {
            name: {f"{alpha:g}": max(_busiest(one)) for alpha, one in by_alpha.items()}
            for name, by_alpha in found.items()
        },
        "lower_bound_rows": {name: {f"{a:g}": bound for a, bound in bounds.items()} for name in found},
    }
