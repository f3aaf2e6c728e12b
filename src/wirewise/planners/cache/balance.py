"""Cache assignment that minimises the rows on the busiest link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.planners.arrays import Vector
from wirewise.planners.cache.policies import CacheProblem, highest, select_cached

__all__ = ["BalancedCaches", "balance_caches"]

_STEP = 3.0
"""Step of the logarithm of the weight of the busiest load, in the first round."""


@dataclass(frozen=True, kw_only=True)
class BalancedCaches:
    """Cached rows of each machine, and the optimality gap of the busiest link."""

    kept: tuple[NDArray[np.int64], ...]
    """Ids of the remote nodes cached by each machine, ascending, [K]."""
    busiest: float
    """Load of the busiest link direction: rows per batch, or seconds."""
    lower_bound: float
    """Lower bound of `busiest` within the same budget."""

    @property
    def gap(self) -> float:
        """Relative gap to the optimum, at most: busiest / lower bound - 1."""
        if self.busiest <= self.lower_bound:
            return 0.0
        return self.busiest / self.lower_bound - 1.0 if self.lower_bound else inf


def balance_caches(
    problem: CacheProblem,
    scores: Sequence[Vector],
    budget: int | Sequence[int],
    *,
    expected: Sequence[Vector] | None = None,
    row_s: Sequence[float] | None = None,
    tolerance: float = 1e-3,
    rounds: int = 100,
) -> BalancedCaches:
    """Choose pairs (machine k, node v) to cache so that the most loaded direction of any machine's link carries least.

    Within each machine's budget, its highest VIP minimises the sum of the fetched rows (SALIENT++), but a step waits
    for the busiest link. Here the largest of 2K loads is minimised: the rows that each machine receives, and those
    that it sends. For weights w of the loads, of sum 1, the pairs of the highest p_k(v) (w_in[k] + w_out[owner(v)])
    leave the least sum(w load), and that is a lower bound of the optimum (the Lagrangian dual). Weights grow
    exponentially with the loads that remain under their choice: multiplicative weights (Arora, Hazan and Kale, The
    Multiplicative Weights Update Method, Theory of Computing 8, 2012), with steps that shrink when the bound falls.
    The best choice of all rounds is returned, including that of equal budgets, so the result is never worse than it.

    Args:
        problem: Sampling of each machine.
        scores: Scores by which rows are chosen, such as VIP; rows of score 0 are not cached. [K][N]
        budget: Rows of all machines together, divided by the planner; or of each machine, [K].
        expected: Expected requests per batch for each node, from which loads and the bound are computed. Defaults to
            the scores. [K][N]
        row_s: Seconds per row on each machine's link; loads are then seconds. Defaults to counting rows. [K]
        tolerance: Relative gap at which to stop.
        rounds: Maximum number of rounds.

    Raises:
        InputError: The budget or the times are invalid.
    """
    machines = problem.machines
    rooms = [budget] * machines if isinstance(budget, int) else list(budget)
    if len(rooms) != machines or min(rooms) < 0:
        raise InputError(
            f"budget is {budget}; expected at least 0 rows of all machines, or of each of {machines}"
        )
    seconds = np.ones(machines) if row_s is None else np.asarray(row_s, dtype=np.float64)
    if seconds.shape != (machines,) or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError(f"seconds of a row are {row_s}; expected {machines}, each above 0")
    rows, exact = (scores, True) if expected is None else (expected, expected is scores)
    pairs = _Pairs(problem, scores, rows, seconds)
    best = pairs.equal(problem, scores, budget)
    busiest = float(pairs.loads(best).max())
    bound = reached = 0.0
    if not exact:
        bound = balance_caches(
            problem, rows, budget, row_s=row_s, tolerance=tolerance, rounds=rounds
        ).lower_bound
    weights, falls = np.full(2 * machines, 0.5 / machines), 0
    for _ in range(rounds):
        chosen = pairs.choose(weights, budget)
        load = pairs.loads(chosen)
        if load.max() < busiest:
            best, busiest = chosen, float(load.max())
        value = float(weights @ load)
        falls += value < reached
        reached = max(reached, value)
        if exact:
            bound = reached
        if busiest <= (1.0 + tolerance) * bound:
            break
        weights *= np.exp(_STEP / (1 + falls) * load / load.max())
        weights /= weights.sum()
    return BalancedCaches(kept=pairs.kept(best), busiest=busiest, lower_bound=bound)


class _Pairs:
    """Machines and remote nodes whose score is above 0, in the order of machines, then nodes.

    Scores and expected rows of a batch are [K][N], seconds of a row on each machine's link [K].
    """

    def __init__(
        self, problem: CacheProblem, scores: Sequence[Vector], expected: Sequence[Vector], seconds: Vector
    ) -> None:
        owner, machines = problem.owner, range(problem.machines)
        found = [np.flatnonzero((owner != k) & (scores[k] > 0)) for k in machines]
        self.node = np.concatenate(found)
        self.cuts = np.cumsum([0, *map(len, found)])
        self.receiver = np.repeat(np.arange(problem.machines), np.diff(self.cuts))
        self.sender = owner[self.node]
        self.score = np.concatenate([scores[k][found[k]] for k in machines])
        self.rows = np.concatenate([expected[k][found[k]] for k in machines])
        never = [np.where((owner == k) | (scores[k] > 0), 0.0, expected[k]) for k in machines]
        self.rest = np.array([np.bincount(owner, rows, problem.machines) for rows in never])
        self.seconds = seconds

    def choose(self, weights: Vector, budget: int | Sequence[int]) -> NDArray[np.bool_]:
        """The choice of the least load by scores, weighted by what machines receive, then send, [2K]; [pairs]."""
        receiving, sending = weights.reshape(2, -1) * self.seconds
        worth = self.score * (receiving[self.receiver] + sending[self.sender])
        if isinstance(budget, int):
            return highest(worth, budget)
        return np.concatenate(
            [highest(part, room) for part, room in zip(np.split(worth, self.cuts[1:-1]), budget, strict=True)]
        )

    def equal(
        self, problem: CacheProblem, scores: Sequence[Vector], budget: int | Sequence[int]
    ) -> NDArray[np.bool_]:
        """Rows that plans of equal budgets, or of the given ones, keep, [pairs]."""
        rooms = [budget // problem.machines] * problem.machines if isinstance(budget, int) else budget
        parts = np.split(self.node, self.cuts[1:-1])
        return np.concatenate(
            [
                np.isin(part, select_cached(scores[k], problem.owner == k, rooms[k]), assume_unique=True)
                for k, part in enumerate(parts)
            ]
        )

    def loads(self, chosen: NDArray[np.bool_]) -> Vector:
        """Rows that machines receive, then rows that they send, [2K]."""
        machines = len(self.seconds)
        pair = self.receiver * machines + self.sender
        left = np.bincount(pair, np.where(chosen, 0.0, self.rows), machines**2).reshape(machines, machines)
        left = left + self.rest
        return np.concatenate([left.sum(1) * self.seconds, left.sum(0) * self.seconds])

    def kept(self, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
        """Nodes of each machine, ascending, [K]."""
        parts = zip(np.split(self.node, self.cuts[1:-1]), np.split(chosen, self.cuts[1:-1]), strict=True)
        return tuple(node[part] for node, part in parts)
