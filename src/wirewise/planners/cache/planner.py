"""Cache plans: what a policy keeps within budgets, and how many rows batches still fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError, PlanError
from wirewise.planners.cache.inclusion import Vector
from wirewise.planners.cache.policies import POLICIES, CacheProblem, bayesian, keep
from wirewise.plans.cache import CachePlan, MachineCache, owner_digest, packed

__all__ = ["budgets_of", "plan", "plans", "share_budget"]


def budgets_of(problem: CacheProblem, alpha: float) -> list[int]:
    """Rows that each machine keeps at a replication factor: alpha N / K each.

    Raises:
        InputError: alpha is negative or not finite.
    """
    if not 0.0 <= alpha < np.inf:
        raise InputError(
            f"alpha is {alpha}; expected the share of all nodes that caches hold together, at least 0, such as 0.5"
        )
    return [int(alpha * problem.num_nodes / problem.machines)] * problem.machines


def plan(
    problem: CacheProblem,
    *,
    policy: str = "bayesian",
    alpha: float = 0.1,
    budgets: Sequence[int] | None = None,
    seed: int = 0,
    **knobs: Any,
) -> CachePlan:
    """Keep the remote nodes of the highest scores on each machine.

    For the probabilities that scores stand for it is optimal: rows add up, and a machine's budget is its own.

    Args:
        problem: What machines sample.
        policy: One of `POLICIES`.
        alpha: Replication factor: every machine keeps alpha N / K rows.
        budgets: Rows of each machine instead, [K].
        seed: Recorded in the plan.
        knobs: Of the policy.

    Raises:
        PlanError: Unknown policy.
        InputError: Budgets that cannot be used.
    """
    if policy not in POLICIES:
        raise PlanError(f"unknown cache policy {policy!r}; expected one of: {', '.join(POLICIES)}")
    rooms = budgets_of(problem, alpha) if budgets is None else list(budgets)
    if len(rooms) != problem.machines or min(rooms) < 0:
        raise InputError(f"budgets are {rooms}; expected {problem.machines}, each of at least 0 rows")
    scores = [POLICIES[policy](problem, machine, **knobs) for machine in range(problem.machines)]
    return _plan(problem, policy, scores, rooms, _expected(problem, policy, scores), seed)


def plans(
    problem: CacheProblem, alphas: Sequence[float], policies: Sequence[str]
) -> dict[str, dict[float, CachePlan]]:
    """Plans of several policies at several replication factors; scores are computed once.

    Raises:
        PlanError: Unknown policy.
        InputError: An alpha that cannot be used.
    """
    if unknown := [name for name in policies if name not in POLICIES]:
        raise PlanError(f"unknown cache policy {unknown[0]!r}; expected some of: {', '.join(POLICIES)}")
    rooms = {alpha: budgets_of(problem, alpha) for alpha in alphas}
    expected = [bayesian(problem, machine) for machine in range(problem.machines)]
    found: dict[str, dict[float, CachePlan]] = {}
    for name in policies:
        scores = [POLICIES[name](problem, machine) for machine in range(problem.machines)]
        found[name] = {
            alpha: _plan(problem, name, scores, room, expected, 0) for alpha, room in rooms.items()
        }
    return found


def share_budget(
    problem: CacheProblem, scores: Sequence[Vector], total: int, *, row_s: Sequence[float] | None = None
) -> list[int]:
    """Divide a budget among machines so that the last row that each keeps is worth the same.

    Args:
        problem: What machines sample.
        scores: Rows a batch that each node saves, such as VIP, [K][N].
        total: Rows of all machines.
        row_s: Seconds that a row takes to each machine; none: the same. [K]

    Returns:
        Rows of each machine, [K].
    """
    weight = np.ones(problem.machines) if row_s is None else np.asarray(row_s, dtype=np.float64)
    worth, machine = [], []
    for number, score in enumerate(scores):
        found = score[(problem.owner != number) & (score > 0)] * weight[number]
        worth.append(found)
        machine.append(np.full(len(found), number))
    order = np.argsort(-np.concatenate(worth), kind="stable")[:total]
    return np.bincount(np.concatenate(machine)[order], minlength=problem.machines).tolist()


def _expected(problem: CacheProblem, policy: str, scores: list[Vector]) -> list[Vector]:
    """Rows a batch that each node is expected to be, of each machine."""
    if policy in ("bayesian", "vip"):
        return scores
    return [bayesian(problem, machine) for machine in range(problem.machines)]


def _plan(
    problem: CacheProblem,
    policy: str,
    scores: list[Vector],
    rooms: list[int],
    expected: list[Vector],
    seed: int,
) -> CachePlan:
    machines = tuple(
        _machine(problem, number, scores[number], rooms[number], expected[number])
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
    )


def _machine(problem: CacheProblem, number: int, scores: Vector, room: int, expected: Vector) -> MachineCache:
    own = problem.owner == number
    kept = keep(scores, own, room)
    rows: NDArray[np.float64] = np.where(own, 0.0, expected)
    needed = np.bincount(problem.owner, weights=rows, minlength=problem.machines)
    spared = np.bincount(problem.owner[kept], weights=rows[kept], minlength=problem.machines)
    return MachineCache(
        nodes=packed(kept),
        budget=room,
        needed=tuple(needed.tolist()),
        fetched=tuple(np.maximum(needed - spared, 0.0).tolist()),
    )
