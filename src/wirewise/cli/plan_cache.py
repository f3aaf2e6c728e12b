"""`wirewise plan cache`: which remote features each machine keeps, and what each policy still fetches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption
from wirewise.cli.plan_job import make_plan, print_plan
from wirewise.cli.sampling import Sampling, sampling_problem
from wirewise.codec.row_formats import exact_format
from wirewise.graph import GraphData, load
from wirewise.planners import PLANNERS, planner
from wirewise.planners.cache import POLICIES, CacheProblem, Share, balance_caches, budgets_of, plans
from wirewise.plans import CachePlan
from wirewise.units import format_size

__all__ = ["cache"]


class Caches(Sampling, frozen=True, kw_only=True):
    """Caches to plan for the sampled batches."""

    alpha: Annotated[
        tuple[Annotated[float, opt.about(ge=0)], ...],
        opt.about("Total cache size as a fraction of all nodes; several separated by commas."),
    ] = (0.1,)
    policy: Annotated[
        opt.Distinct, opt.about(f"Policies of the caches: {', '.join(PLANNERS['cache'])}, or all.")
    ] = ("vip",)
    share: Annotated[
        Share, opt.about("How cache rows are divided: equal on each rank, or balanced for the busiest link.")
    ] = "equal"


@with_options
def cache(
    options: Caches,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File that takes the plan of the first policy and alpha."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Choose which remote node features each machine caches during mini-batch training.

    Fetched rows are expected values, from inclusion probabilities corrected by two sampled epochs.
    """
    names = list(PLANNERS["cache"]) if "all" in options.policy else options.policy
    for name in names:
        planner("cache", name)
    graph, alphas = load(options.dataset, seed=options.seed), options.alpha
    if graph.directed and not options.directed:
        graph = graph.undirected()
    problem = sampling_problem(graph, options)
    found = {name: _planned(problem, name, alphas, options.share) for name in names}
    first = found[names[0]][alphas[0]]
    bounds = {
        a: balance_caches(problem, problem.expected, sum(budgets_of(problem, a))).lower_bound for a in alphas
    }
    form, row_bytes = exact_format(graph.x)
    needed = sum(sum(machine.needed) for machine in first.machines)
    said = (
        f"A batch of {options.batch_size} seeds on each of {options.workers} machines needs {needed:.0f} rows of other "
        f"machines, {format_size(needed * row_bytes)} in their smallest format ({form.name}). Left to fetch:"
    )
    rows = [
        [
            name,
            *(
                f"{by_alpha[a].remote_fraction:.3f}  {format_size(needed * by_alpha[a].remote_fraction * row_bytes)}"
                for a in alphas
            ),
        ]
        for name, by_alpha in found.items()
    ]
    received, sent = _busiest(first)
    busiest = (
        f"{names[0]} at alpha {alphas[0]:g}: a machine fetches at most {received:.0f} rows a batch and sends at most "
        f"{sent:.0f}; with as many cached rows in all, no plan has a busiest link of less than {bounds[alphas[0]]:.0f}."
    )
    written = [f"Plan of {names[0]} at alpha {alphas[0]:g}: {out}"] if out is not None else []
    table = (["policy", *(f"alpha {a:g}" for a in alphas)], rows)
    record = _record(found, bounds, first, graph, row_bytes)
    print_plan(first, out, json, said, table, busiest, *written, record=record)


def _planned(
    problem: CacheProblem, name: str, alphas: Sequence[float], share: Share
) -> dict[float, CachePlan]:
    """Plans by alpha; those of our own policies compute their scores once."""
    if name in POLICIES:
        return plans(problem, alphas, [name], share=share)[name]
    return {alpha: make_plan(CachePlan, name, problem, alpha=alpha, share=share) for alpha in alphas}


def _busiest(plan: CachePlan) -> tuple[float, float]:
    """Rows a batch of the machine that fetches most, and of the one that sends most."""
    rows = plan.fetched
    return float(rows.sum(axis=1).max()), float(rows.sum(axis=0).max())


def _record(
    found: dict[str, dict[float, CachePlan]],
    bounds: dict[float, float],
    first: CachePlan,
    graph: GraphData,
    row_bytes: float,
) -> dict[str, Any]:
    return {
        "dataset": graph.name,
        "nodes": graph.num_nodes,
        "workers": first.world_size,
        "row_bytes": row_bytes,
        "rows_needed": [sum(machine.needed) for machine in first.machines],
        "policies": {
            name: {f"{alpha:g}": one.remote_fraction for alpha, one in by_alpha.items()}
            for name, by_alpha in found.items()
        },
        "busiest_rows": {
            name: {f"{alpha:g}": max(_busiest(one)) for alpha, one in by_alpha.items()}
            for name, by_alpha in found.items()
        },
        "lower_bound_rows": {name: {f"{a:g}": bound for a, bound in bounds.items()} for name in found},
    }
