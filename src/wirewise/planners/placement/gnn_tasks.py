"""Placement of graph stores, samplers, workers and parameter servers for distributed GNN training.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022, with hosts that differ as in the extension to heterogeneous systems (IEEE/ACM ToN 2024). Flows are
ordered online: under `oes` by the degrees of their ends, under `iter`, the default, by their iteration.
"""

from __future__ import annotations

from wirewise.errors import PlanError
from wirewise.planners.placement.chain import search
from wirewise.planners.placement.problem import Ints, PlacementProblem
from wirewise.planners.placement.starts import STARTS, first_fit
from wirewise.plans.placement import FlowPolicy, PlacedTask, PlacementPlan

__all__ = ["METHODS", "place"]

METHODS = ("gnn-tasks", *STARTS)
"""The search, and the rules that it is compared with."""


def place(
    method: str,
    problem: PlacementProblem,
    *,
    policy: FlowPolicy = "iter",
    steps: int = 1000,
    beta: float = 200.0,
    seed: int = 0,
) -> PlacementPlan:
    """Place all tasks.

    Args:
        method: One of `METHODS`; the search starts from the faster one of colocated and store-affine
            tasks, where they fit.
        problem: Tasks and hosts.
        policy: How flows share interfaces, in the simulation and when the plan is carried out.
        steps: Steps of the search.
        beta: Beta of the search (`chain.search`).
        seed: Seed of random choices.

    Raises:
        PlanError: No room; the message names the resource that is short.
        InputError: As `chain.search` and `FlowSimulator.run`.
    """
    simulator = problem.simulator
    rules = ("colocated", "store-affine")
    ruled = {rule: places for rule in rules if (places := _ruled(problem, rule, seed)) is not None}
    if method == "gnn-tasks":
        starts = list(ruled.values()) or [first_fit(problem, seed=seed)]
        start = min(starts, key=lambda places: simulator.seconds(places, policy))
        places = search(problem, start, policy=policy, steps=steps, beta=beta, seed=seed).places
    else:
        places = STARTS[method](problem, seed=seed)
    together = ruled.get("colocated")
    return PlacementPlan(
        world_size=len(problem.hosts),
        planner=method,
        seed=seed,
        tasks=tuple(
            PlacedTask(name=task.name, kind=task.kind, host=int(host), demand=task.demand)
            for task, host in zip(problem.tasks.tasks, places, strict=True)
        ),
        hosts=problem.hosts,
        policy=policy,
        iterations=problem.tasks.iterations,
        prefetch=problem.tasks.prefetch,
        predicted_s=simulator.seconds(places, policy),
        colocated_s=0.0 if together is None else simulator.seconds(together, policy),
        lower_bound_s=simulator.bounds(places).seconds,
        competitive_ratio=simulator.competitive_ratio(places),
    )


def _ruled(problem: PlacementProblem, rule: str, seed: int) -> Ints | None:
    """The rule's placement, if it fits."""
    try:
        return STARTS[rule](problem, seed=seed)
    except PlanError:
        return None
