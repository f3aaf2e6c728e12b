"""Reduction of candidate trees to few that carry nearly the same rate.

Multiplicative weights yield tens to hundreds of trees, each a stream of small messages. Two integer programs over the
tree weights w, under the edge capacities: the largest sum of integer w, and the fewest trees with it; if integer
weights lose more than the tolerance, the fewest trees with any weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from wirewise.errors import PlanError
from wirewise.planners.solvers import mixed_integer

__all__ = ["fewest_trees"]

_EACH = 4
"""Trees by which the number of those that are looked at grows."""
_LATE = 1
"""Status of scipy's `milp` where a limit ended it."""


class _Trees(NamedTuple):
    uses: NDArray[np.float64]
    capacity: NDArray[np.float64]
    most: NDArray[np.float64]
    """Weight of each tree alone, [trees]."""

    def some(self, which: slice | NDArray[np.int64]) -> _Trees:
        return _Trees(self.uses[which], self.capacity, self.most[which])

    @property
    def fits(self) -> LinearConstraint:
        return LinearConstraint(self.uses.T, -np.inf, self.capacity)


def fewest_trees(
    uses: NDArray[np.float64],
    capacity: NDArray[np.float64],
    optimum: float,
    *,
    tolerance: float = 0.05,
    time_limit_s: float = 20.0,
) -> NDArray[np.float64]:
    """Find tree weights, most of them 0, whose sum is at least `(1 - tolerance) * optimum`.

    Args:
        uses: Number of uses of each edge by each tree; [trees, edges]. The best trees should come first.
        capacity: Capacities in units in which integer weights make sense, such as links; [edges].
        optimum: Largest sum that any trees reach.
        tolerance: Fraction of the optimum that may be lost.
        time_limit_s: Time limit of each integer program, in seconds.

    Raises:
        PlanError: The trees do not reach that sum.
    """
    trees = _Trees(uses, capacity, np.array([capacity[row > 0].min() for row in uses]))
    least, whole = (1 - tolerance) * optimum, float(np.floor(optimum + 1e-9))
    if whole >= least:
        total = _largest_whole(trees, whole, time_limit_s)
        found = _fewest(trees, total, True, time_limit_s) if total >= least else None
        if found is not None:
            return found
    some = _enough(trees, (1 - tolerance / 2) * optimum)
    chosen = np.zeros(len(uses), bool)
    found = _fewest(trees.some(some), least, False, time_limit_s)
    # Without an answer in time, all of them: more trees than need be.
    chosen[some] = True if found is None else found > 1e-9
    return _largest(trees._replace(most=np.where(chosen, trees.most, 0.0)))


def _largest(trees: _Trees) -> NDArray[np.float64]:
    """Weights of the largest sum."""
    bounds = Bounds(0, trees.most)
    return np.asarray(milp(-np.ones(len(trees.uses)), bounds=bounds, constraints=trees.fits).x)


def _largest_whole(trees: _Trees, bound: float, time_limit_s: float) -> float:
    """Largest sum of whole weights. The search ends as soon as it meets the bound, which is a constraint."""
    ones = np.ones(len(trees.uses))
    found = mixed_integer(
        -ones,
        budget_s=time_limit_s,
        integrality=ones,
        bounds=Bounds(0, np.floor(trees.most + 1e-9)),
        constraints=[trees.fits, LinearConstraint(ones, 0, bound)],
    )
    return 0.0 if found.x is None else float(np.round(found.x.sum()))


def _enough(trees: _Trees, least: float) -> NDArray[np.int64]:
    """The first trees, so few that some of them still carry the least rate: with few the integer program is quick."""
    low, high = 1, -(-len(trees.uses) // _EACH)
    while low < high:
        middle = (low + high) // 2
        reached = _largest(trees.some(slice(middle * _EACH))).sum() >= least
        low, high = (low, middle) if reached else (middle + 1, high)
    return np.arange(min(high * _EACH, len(trees.uses)))


def _fewest(trees: _Trees, least: float, whole: bool, time_limit_s: float) -> NDArray[np.float64] | None:
    """Weights of the fewest trees that carry the least rate; None if not found in time."""
    count = len(trees.uses)
    ones, zeros = np.ones(count), np.zeros(count)
    unused = np.zeros((len(trees.capacity), count))
    rows = [
        LinearConstraint(np.hstack([trees.uses.T, unused]), -np.inf, trees.capacity),
        LinearConstraint(np.hstack([np.eye(count), -np.diag(trees.most)]), -np.inf, 0.0),
        LinearConstraint(np.concatenate([ones, zeros]), least - 1e-9, np.inf),
    ]
    found = mixed_integer(
        np.concatenate([zeros, ones]),
        budget_s=time_limit_s,
        integrality=np.concatenate([np.full(count, int(whole)), ones]),
        bounds=Bounds(0, np.concatenate([trees.most, ones])),
        constraints=rows,
    )
    if found.x is None and found.status == _LATE:
        return None
    if found.x is None:
        raise PlanError(
            f"{count} trees do not carry {least:g} ({found.message}); allow a larger tolerance or a smaller epsilon"
        )
    weights = np.asarray(found.x[:count])
    return np.round(weights) if whole else weights
