"""Caches while a graph grows: probabilities are computed again only where they may differ, and few rows are fetched.

p_h(u) of `inclusion` depends on who may draw u, on how many neighbours each of these draws from, and on their p_{h-1}.
From one graph to the next it can only differ within L hops of a node whose neighbours or whose chance to be a seed did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.structure import InEdges
from wirewise.planners.arrays import Ints, Vector
from wirewise.planners.cache.inclusion import ALMOST_ONE
from wirewise.planners.cache.policies import CacheProblem, select_cached


class CacheChange(NamedTuple):
    """What one machine does when the graph has grown."""

    fetch: Ints
    """Remote nodes whose rows it now keeps and did not before, ascending."""
    drop: Ints
    """Nodes whose rows it kept and no longer keeps, ascending."""
    recomputed: int
    """Probabilities of a node at a hop that were computed again, of N L."""


class GrowingCache:
    """What machines keep by vertex-wise inclusion probability, from one graph to the next.

    Args:
        problem: What machines sample at first.
        budgets: Rows that each machine keeps, [K].

    Raises:
        InputError: Not one budget for each machine, or a negative one.
    """

    def __init__(self, problem: CacheProblem, budgets: Sequence[int]) -> None:
        if len(budgets) != problem.machines or min(budgets) < 0:
            raise InputError(
                f"budgets are {list(budgets)}; expected {problem.machines}, each of at least 0 rows"
            )
        self.problem, self._budgets = problem, tuple(budgets)
        self._hops = [_hops(problem, machine) for machine in range(problem.machines)]
        self.kept = self._keep()
        """Remote nodes whose rows each machine keeps, ascending, [K]."""

    def scores(self, machine: int) -> Vector:
        """VIP of every node for a machine, [N]."""
        needed = np.zeros(self.problem.num_nodes)
        for hop in self._hops[machine][1:]:
            needed = needed + (1.0 - needed) * hop
        return needed

    def grow(self, problem: CacheProblem) -> tuple[CacheChange, ...]:
        """Take the next graph, whose nodes keep their numbers; edges, seeds and owners may differ. [K].

        Raises:
            InputError: Fewer nodes, or other machines or fanouts.
        """
        before = self.problem
        if problem.num_nodes < before.num_nodes or (problem.machines, problem.fanouts) != (
            before.machines, before.fanouts,
        ):  # fmt: skip
            raise InputError(
                f"got {problem.num_nodes} nodes, {problem.machines} machines and fanouts {problem.fanouts}; expected "
                f"at least {before.num_nodes}, {before.machines} and {before.fanouts}: plan another graph anew"
            )
        step = _Step(before, problem)
        counts = []
        for machine, hops in enumerate(self._hops):
            self._hops[machine], recomputed = step.refreshed(hops, problem.seed_probabilities[machine])
            counts.append(recomputed)
        kept, self.problem = self.kept, problem
        self.kept = self._keep()
        return tuple(
            CacheChange(np.setdiff1d(now, then), np.setdiff1d(then, now), recomputed)
            for then, now, recomputed in zip(kept, self.kept, counts, strict=True)
        )

    def _keep(self) -> list[Ints]:
        return [
            select_cached(self.scores(machine), self.problem.owner == machine, budget)
            for machine, budget in enumerate(self._budgets)
        ]


def _hops(problem: CacheProblem, machine: int) -> list[Vector]:
    """Access probabilities p_0 to p_L, [L + 1][N]."""
    found = [problem.seed_probabilities[machine]]
    for fanout in problem.fanouts:
        found.append(problem.drawers.any_of(problem.drawers.share(fanout) * found[-1]))
    return found


class _Step:
    """A step from one graph to the next: nodes whose neighbours differ, and probabilities near them."""

    def __init__(self, before: CacheProblem, after: CacheProblem) -> None:
        self._before, self._after = before, after
        self._touched = _touched(before.edges, after.edges)

    def refreshed(self, hops: list[Vector], seeds: Vector) -> tuple[list[Vector], int]:
        """Access probabilities p_0 to p_L on the next graph, and how many were computed again."""
        after = self._after
        more = after.num_nodes - self._before.num_nodes
        found, recomputed = [seeds], 0
        for fanout, last, then in zip(after.fanouts, hops, hops[1:], strict=False):
            old = np.append(self._before.drawers.share(fanout) * last, np.zeros(more))
            new = after.drawers.share(fanout) * found[-1]
            near = self._near(old, new)
            now = np.append(then, np.zeros(more))
            # The sums of `Drawers.any_of`, in the same order.
            now[near] = -np.expm1(_sums_of(after.drawers.indptr, after.drawers.indices, near, new))
            found.append(now)
            recomputed += len(near)
        return found, recomputed

    def _near(self, old: Vector, new: Vector) -> Ints:
        """Nodes that are drawn with another chance, by the chances with which each node draws a neighbour."""
        other = (old != new) | (self._touched & (new > 0))
        lost = (self._touched & (old > 0))[: self._before.num_nodes]
        return np.union1d(
            _neighbours(self._after.edges, np.flatnonzero(other)),
            _neighbours(self._before.edges, np.flatnonzero(lost)),
        )


def _touched(before: InEdges, after: InEdges) -> NDArray[np.bool_]:
    """Nodes of the later graph whose in-neighbours differ, [N]."""
    degree, then = np.diff(after.indptr), np.diff(before.indptr)
    same = degree == np.append(then, np.zeros(len(degree) - len(then), then.dtype))
    # Rows of equal length lie behind each other in the same order on both sides.
    one = before.indices[np.repeat(same[: len(then)], then)]
    other = after.indices[np.repeat(same, degree)]
    row = np.repeat(np.flatnonzero(same), degree[same])
    touched = ~same
    touched[row[one != other]] = True
    return touched


def _neighbours(edges: InEdges, nodes: Ints) -> Ints:
    """In-neighbours of any of the nodes, ascending."""
    degree = np.diff(edges.indptr)[nodes]
    at = np.repeat(edges.indptr[nodes] - np.cumsum(degree) + degree, degree) + np.arange(degree.sum())
    return np.unique(edges.indices[at]).astype(np.int64)


@numba.njit(nogil=True, cache=True)
def _sums_of(indptr: Ints, indices: NDArray[np.int32], nodes: Ints, probability: Vector) -> Vector:
    found = np.empty(len(nodes))
    for i, node in enumerate(nodes):
        total = 0.0
        for edge in range(indptr[node], indptr[node + 1]):
            total += np.log1p(-min(probability[indices[edge]], ALMOST_ONE))
        found[i] = total
    return found
