"""Baseline deployments of a model, under the same simulator."""

from __future__ import annotations

from math import inf

import numpy as np

from wirewise.planners.placement.tag.problem import DeploymentProblem, Strategy
from wirewise.planners.placement.tag.search import StrategyTimes, descend
from wirewise.plans.deployment import DeploymentPlan

__all__ = ["METHODS", "deploy"]

METHODS = ("data-parallel", "proportional", "flexflow", "baechi", "heterog")
"""Names of the methods."""


def deploy(
    problem: DeploymentProblem, *, method: str, simulations: int = 2000, seed: int = 0
) -> DeploymentPlan:
    """Deploy a model by a baseline method.

    data-parallel: everything on all devices, even rows, all-reduces. proportional: rows in proportion to device
    speed. flexflow: a Markov chain over sets of devices and all-reduce, servers or model parallelism, even rows (Z.
    Jia et al., MLSys 2019). baechi: each op group where it is done first, as memory allows, without replicas (B. Jeon
    et al., SoCC 2020). heterog: each op group on one device, or on all of them with even or proportional rows and
    all-reduce or servers (X. Yi et al., CoNEXT 2020), by descent instead of a learned policy.

    Args:
        problem: Model, devices and batch.
        method: One of `METHODS`.
        simulations: Maximum number of strategies that flexflow and heterog simulate.
        seed: Seed of random choices.

    Raises:
        PlanError: No strategy of the method fits into the memory of the devices.
    """
    if method == "data-parallel":
        found = problem.baseline()
    elif method == "proportional":
        found = problem.uniform_strategy("allreduce", proportional=True)
    elif method == "flexflow":
        found = _chain(problem, simulations, seed)
    elif method == "baechi":
        found = _first_done(problem)
    else:
        found = _on_one_or_all(problem, simulations, seed)
    return problem.plan(found, method, seed)


def _chain(problem: DeploymentProblem, simulations: int, seed: int, beta: float = 50.0) -> Strategy:
    random, times = np.random.default_rng(seed), StrategyTimes(problem, simulations)
    allowed = [
        [a for a, one in enumerate(own) if not one.proportional and one.communication != "duplicate"]
        for own in problem.actions
    ]
    now = problem.baseline()
    now_s = start_s = times.of(now)
    # A start that does not fit is left for whatever fits.
    scale = problem.step(now).step_s if start_s == inf else start_s
    for _ in range(4 * simulations):
        group = int(random.integers(len(now)))
        tried = (*now[:group], int(random.choice(allowed[group])), *now[group + 1 :])
        try:
            then = times.of(tried)
        except StrategyTimes.BudgetExhausted:
            break
        if then <= now_s or random.random() < np.exp(-beta * (then - now_s) / scale):
            now, now_s = tried, then
    return times.best


def _first_done(problem: DeploymentProblem) -> Strategy:
    """Earliest finish under memory; an op group's rows come from where most of its inputs are."""
    costs, links = problem.simulator.costs, problem.links
    rooms, seconds = problem.simulator.room.copy(), problem.seconds
    free, placed, done = np.zeros(len(rooms)), dict[int, int](), dict[int, float]()
    of_module = {m: g for g, modules in enumerate(problem.op_groups) for m in modules}
    for g, modules in enumerate(problem.op_groups):
        before = [
            (of_module[s], problem.batch * costs.output[s])
            for s, t in zip(costs.source.tolist(), costs.target.tolist(), strict=True)
            if of_module[t] == g and of_module[s] != g
        ]
        needed = sum(costs.state * costs.parameters[m] + problem.batch * costs.saved[m] for m in modules)
        ends = np.full(len(rooms), inf)
        for rank in range(len(rooms)):
            ready = max(
                (
                    done[p]
                    + (
                        2 * size * float(links.pairs.s_per_byte[placed[p], rank])
                        if placed[p] != rank
                        else 0.0
                    )
                    for p, size in before
                ),
                default=0.0,
            )
            if rooms[rank] >= needed:
                ends[rank] = max(ready, free[rank]) + seconds[g, rank]
        # Where nothing has room, the one with most room is as good as any.
        rank = int(ends.argmin()) if np.isfinite(ends).any() else int(rooms.argmax())
        placed[g], done[g] = rank, float(ends[rank])
        free[rank], rooms[rank] = ends[rank], rooms[rank] - needed
    return tuple(_alone(problem, g, placed[g]) for g in range(len(problem.op_groups)))


def _alone(problem: DeploymentProblem, group: int, rank: int) -> int:
    """The action with the fewest devices among which a rank is."""
    own = next(number for number, ranks in enumerate(problem.device_groups) if rank in ranks)
    actions = problem.actions[group]
    fitting = [a for a, one in enumerate(actions) if one.groups == (own,)]
    return max(fitting or range(len(actions)), key=lambda a: actions[a].communication == "mp")


def _on_one_or_all(problem: DeploymentProblem, simulations: int, seed: int) -> Strategy:
    whole = len(problem.device_groups)

    def allowed(g: int, a: int) -> bool:
        one = problem.actions[g][a]
        alone = len(one.groups) == 1 and one.communication == "mp"
        return alone or (len(one.groups) == whole and one.communication in ("allreduce", "ps"))

    times = StrategyTimes(problem, simulations)
    return descend(times, problem.baseline(), seed=seed, allowed=allowed)
