"""Cache plans: rows that a policy keeps within budgets, and rows that batches still fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError, PlanError
from wirewise.planners.arrays import Vector
from wirewise.planners.cache.balance import balance_caches
from wirewise.planners.cache.policies import POLICIES, CacheProblem, select_cached
from wirewise.plans.cache import CachePlan, MachineCache, owner_digest, pack_node_ids

__all__ = ["Share", "budgets_of", "plan", "plans"]

Share = Literal["equal", "balanced"]
"""Equal budgets, each machine's highest scores, for the fewest rows in sum; or what spares the busiest link."""


def budgets_of(problem: CacheProblem, alpha: float) -> list[int]:
    """Number of rows that each machine caches at a replication factor: alpha N / K each.

    Raises:
        InputError: alpha is negative or not finite.
    """
    if not 0.0 <= alpha < np.inf:
        raise InputError(
            f"alpha is {alpha}; expected the share of all nodes that caches hold together, at least 0, such as 0.5"
        )
    return [int(alpha * problem.num_nodes / problem.machines)] * problem.machines


def plan(
    policy: str,
    problem: CacheProblem,
    *,
    alpha: float = 0.1,
    budgets: Sequence[int] | None = None,
    share: Share = "equal",
    row_s: Sequence[float] | None = None,
    seed: int = 0,
    **knobs: Any,
) -> CachePlan:
    """Cache the remote nodes of the highest scores on each machine, or those that relieve the busiest link.

    If scores are probabilities, the highest of each machine minimise the total number of fetched rows.
    `share="balanced"` minimises the rows of the busiest link instead, with the same total of cached rows, divided
    over machines as needed (`balance_caches`); a machine's budget is then the number it keeps.

    Args:
        policy: One of `POLICIES`.
        problem: Sampling of each machine.
        alpha: Replication factor: every machine keeps alpha N / K rows, or all of them alpha N.
        budgets: Rows of each machine in place of alpha, [K]; also used with balanced links.
        share: Division of the cached rows over machines.
        row_s: Seconds per row on each machine's link, for balanced links. Defaults to equal. [K]
        seed: Recorded in the plan.
        knobs: Options of the policy.

    Raises:
        PlanError: The value of `share` is unknown.
        InputError: Budgets or times are invalid.
    """
    _check_share(share)
    rooms = budgets_of(problem, alpha) if budgets is None else list(budgets)
    if len(rooms) != problem.machines or min(rooms) < 0:
        raise InputError(f"budgets are {rooms}; expected {problem.machines}, each of at least 0 rows")
    if row_s is not None and share != "balanced":
        raise InputError("seconds of a row change nothing where shares are equal; expected share balanced")
    scores = _scores(problem, policy, knobs)
    expected = scores if policy in ("bayesian", "vip") else problem.expected
    return _plan(problem, policy, scores, expected, rooms, share, budgets is not None, row_s, seed)


def plans(
    problem: CacheProblem, alphas: Sequence[float], policies: Sequence[str], *, share: Share = "equal"
) -> dict[str, dict[float, CachePlan]]:
    """Plan caches for several policies and replication factors; scores are computed once.

    Args:
        problem: Sampling of each machine.
        alphas: Replication factors to plan for.
        policies: Some of `POLICIES`.
        share: Division of the cached rows over machines (see `plan`).

    Raises:
        PlanError: A policy or the value of `share` is unknown.
        InputError: An alpha is invalid.
    """
    if unknown := [name for name in policies if name not in POLICIES]:
        raise PlanError(f"unknown cache policy {unknown[0]!r}; expected some of: {', '.join(POLICIES)}")
    _check_share(share)
    rooms = {alpha: budgets_of(problem, alpha) for alpha in alphas}
    found: dict[str, dict[float, CachePlan]] = {}
    for name in policies:
        scores, found[name] = _scores(problem, name, {}), {}
        for alpha, room in rooms.items():
            found[name][alpha] = _plan(problem, name, scores, problem.expected, room, share)
    return found


def _check_share(share: str) -> None:
    if share not in get_args(Share):
        raise PlanError(f"unknown share {share!r}; expected one of: {', '.join(get_args(Share))}")


def _scores(problem: CacheProblem, policy: str, knobs: dict[str, Any]) -> Sequence[Vector]:
    if policy == "bayesian" and not knobs:
        return problem.expected
    return [POLICIES[policy](problem, machine, **knobs) for machine in range(problem.machines)]


def _plan(
    problem: CacheProblem,
    policy: str,
    scores: Sequence[Vector],
    expected: Sequence[Vector],
    rooms: Sequence[int],
    share: Share,
    own: bool = False,
    row_s: Sequence[float] | None = None,
    seed: int = 0,
) -> CachePlan:
    """Cached rows of machines; where links are balanced, each has its `own` room, or they divide all of it."""
    kept: Sequence[NDArray[np.int64]]
    if share == "equal":
        kept = [select_cached(scores[k], problem.owner == k, room) for k, room in enumerate(rooms)]
    else:
        budget = rooms if own else sum(rooms)
        kept = balance_caches(problem, scores, budget, expected=expected, row_s=row_s).kept
        rooms = rooms if own else [len(nodes) for nodes in kept]
    machines = tuple(
        _machine(problem, number, kept[number], rooms[number], expected[number])
        for number in range(problem.machines)
    )
    return CachePlan(
        world_size=problem.machines,
        planner=policy,
        seed=seed,
        machines=machines,
        num_nodes=problem.num_nodes,
        owner=owner_digest(problem.owner),
        fanouts=problem.fanouts,
        batch_size=problem.batch_size,
        batches=max(-(-len(train) // problem.batch_size) for train in problem.train),
        semantics=problem.semantics,
        imbalance=_imbalance(problem, kept),
    )


def _imbalance(problem: CacheProblem, kept: Sequence[NDArray[np.int64]]) -> float:
    """See `CachePlan.imbalance`; of sampled batches."""
    fetched = np.zeros((len(problem.sampled), problem.machines, problem.machines))
    for machine, nodes in enumerate(kept):
        lacking = np.ones(problem.num_nodes, np.bool_)
        lacking[nodes] = False
        for number, batch in enumerate(problem.sampled):
            owner = problem.owner[batch[machine][lacking[batch[machine]]]]
            fetched[number, machine] = np.bincount(owner, minlength=problem.machines)
    links = np.concatenate([fetched.sum(axis=1), fetched.sum(axis=2)], axis=1)
    usual = links.mean(axis=0).max(initial=0.0)
    return max(float(links.max(axis=1).mean() / usual), 1.0) if usual else 1.0


def _machine(
    problem: CacheProblem, number: int, kept: NDArray[np.int64], room: int, expected: Vector
) -> MachineCache:
    rows: Vector = np.where(problem.owner == number, 0.0, expected)
    needed = np.bincount(problem.owner, weights=rows, minlength=problem.machines)
    spared = np.bincount(problem.owner[kept], weights=rows[kept], minlength=problem.machines)
    return MachineCache(
        nodes=pack_node_ids(kept),
        budget=room,
        needed=tuple(needed.tolist()),
        fetched=tuple(np.maximum(needed - spared, 0.0).tolist()),
    )
