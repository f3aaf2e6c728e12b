"""TAG: deployment of a model on a heterogeneous cluster by a learned policy, tree search and simulation."""

from __future__ import annotations

from math import inf

from wirewise.errors import PlanError
from wirewise.planners.placement.tag.problem import DeploymentProblem
from wirewise.planners.placement.tag.search import StrategyTimes, descend, tree_search
from wirewise.plans.deployment import DeploymentPlan

__all__ = ["plan_tag"]


def plan_tag(
    problem: DeploymentProblem,
    *,
    playouts: int = 800,
    simulations: int = 2000,
    weights: str | None = None,
    learned: bool = True,
    seed: int = 0,
) -> DeploymentPlan:
    """Choose devices, batch rows and communication of each op group.

    S. Zhang et al.: Expediting Distributed DNN Training with Device Topology-Aware Graph Deployment, TPDS 2023.
    Objective: seconds of a simulated step. Variables: for each op group a set of device groups; all-reduce, servers,
    sufficient factors or model parallelism; beyond the paper, even or proportional rows. Constraint: memory. A
    heterogeneous graph network, trained on other models and topologies, gives the prior of a tree search, and descent
    improves runs of op groups of the best result. Time is that of `simulations`, each in proportion to op groups
    times devices.

    Args:
        problem: Model, devices and batch.
        playouts: Maximum number of playouts of the tree search.
        simulations: Maximum number of simulated strategies, playouts and descent together.
        weights: File of weights of the network. Defaults to the shipped ones.
        learned: Whether the network guides the search; otherwise the prior is uniform.
        seed: Seed of random choices.

    Raises:
        InputError: The file holds no weights.
        PlanError: Nothing fits into the memory of the devices; the message says which is short, and by how much.
    """
    if playouts < 0 or simulations < 2:
        raise PlanError(f"got {playouts} playouts and {simulations} simulations; expected at least 0 and 2")
    policy = None
    if learned and playouts:
        from wirewise.planners.placement.tag.network import shipped_policy

        policy = shipped_policy(weights)
    times = StrategyTimes(problem, simulations)
    starts = [problem.baseline()]
    if simulations > 2:
        starts += [problem.uniform_strategy(way, proportional=True) for way in ("allreduce", "duplicate")]
    for start in starts:
        if len(times.known) < simulations:
            times.of(start)
    found = tree_search(times, playouts=playouts, policy=policy, seed=seed)
    descend(times, min((found.strategy, *starts), key=lambda one: times.known.get(one, inf)), seed=seed)
    return problem.plan(times.best, "tag", seed)
