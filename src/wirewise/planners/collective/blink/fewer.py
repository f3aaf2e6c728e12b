"""Few of many candidate trees that carry nearly as much.

Multiplicative weights leave tens to hundreds of trees, each a stream of small messages. Two integer programs of the
weights w of the trees, under the capacities of the edges: the largest sum of whole w, and the fewest trees of it;
where whole weights lose more than the tolerance, the fewest trees with any weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from wirewise.errors import PlanError

__all__ = ["fewest"]

_EACH = 4
"""Trees by which the number of those that are looked at grows."""
_LATE = 1
"""Status of scipy's `milp` where a limit ended it."""


def fewest(
    uses: NDArray[np.float64],
    capacity: NDArray[np.float64],
    optimum: float,
    *,
    tolerance: float = 0.05,
    time_limit_s: float = 20.0,
) -> NDArray[np.float64]:
    """Weights of the trees, most of them 0, whose sum is at least `(1 - tolerance) * optimum`.

    Args:
        uses: How often each tree uses each edge; [trees, edges]. The best trees should come first.
        capacity: In units in which whole weights make sense, such as links; [edges].
        optimum: Largest sum that any trees reach.
        tolerance: Part of it that may be lost.
        time_limit_s: Seconds for each integer program.

    Raises:
        PlanError: The trees do not carry so much.
    """
    trees, least = len(uses), (1 - tolerance) * optimum
    most = np.array([capacity[row > 0].min() for row in uses])
    if np.floor(optimum + 1e-9) >= least:
        total = _largest_whole(uses, capacity, most, float(np.floor(optimum + 1e-9)), time_limit_s)
        found = _fewest(uses, capacity, most, total, True, time_limit_s) if total >= least else None
        if found is not None:
            return found
    some = _enough(uses, capacity, most, (1 - tolerance / 2) * optimum)
    chosen = np.zeros(trees, bool)
    found = _fewest(uses[some], capacity, most[some], least, False, time_limit_s)
    # Without an answer in time, all of them: more trees than need be.
    chosen[some] = True if found is None else found > 1e-9
    return _largest(uses, capacity, np.where(chosen, most, 0.0))


def _largest(
    uses: NDArray[np.float64], capacity: NDArray[np.float64], most: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights of the largest sum."""
    fits = LinearConstraint(uses.T, -np.inf, capacity)
    return np.asarray(milp(-np.ones(len(uses)), bounds=Bounds(0, most), constraints=fits).x)


def _largest_whole(
    uses: NDArray[np.float64],
    capacity: NDArray[np.float64],
    most: NDArray[np.float64],
    bound: float,
    time_limit_s: float,
) -> float:
    """Largest sum of whole weights. The search ends as soon as it meets the bound, which is a constraint."""
    trees = len(uses)
    rows = [LinearConstraint(uses.T, -np.inf, capacity), LinearConstraint(np.ones(trees), 0, bound)]
    found = milp(
        -np.ones(trees),
        integrality=np.ones(trees),
        bounds=Bounds(0, np.floor(most + 1e-9)),
        constraints=rows,
        options={"time_limit": time_limit_s},
    )
    return 0.0 if found.x is None else float(np.round(found.x.sum()))


def _enough(
    uses: NDArray[np.float64], capacity: NDArray[np.float64], most: NDArray[np.float64], least: float
) -> NDArray[np.int64]:
    """The first trees, so few that some of them still carry the least rate: with few the integer program is quick."""
    low, high = 1, -(-len(uses) // _EACH)
    while low < high:
        middle = (low + high) // 2
        first = slice(middle * _EACH)
        reached = _largest(uses[first], capacity, most[first]).sum() >= least
        low, high = (low, middle) if reached else (middle + 1, high)
    return np.arange(min(high * _EACH, len(uses)))


def _fewest(
    uses: NDArray[np.float64],
    capacity: NDArray[np.float64],
    most: NDArray[np.float64],
    least: float,
    whole: bool,
    time_limit_s: float,
) -> NDArray[np.float64] | None:
    """Weights of the fewest trees that carry the least rate; None: not found in time."""
    trees = len(uses)
    none, each = np.zeros((len(capacity), trees)), np.eye(trees)
    rows = [
        LinearConstraint(np.hstack([uses.T, none]), -np.inf, capacity),
        LinearConstraint(np.hstack([each, -np.diag(most)]), -np.inf, 0.0),
        LinearConstraint(np.concatenate([np.ones(trees), np.zeros(trees)]), least - 1e-9, np.inf),
    ]
    found = milp(
        np.concatenate([np.zeros(trees), np.ones(trees)]),
        integrality=np.concatenate([np.full(trees, int(whole)), np.ones(trees)]),
        bounds=Bounds(0, np.concatenate([most, np.ones(trees)])),
        constraints=rows,
        options={"time_limit": time_limit_s},
    )
    if found.x is None and found.status == _LATE:
        return None
    if found.x is None:
        raise PlanError(
            f"{trees} trees do not carry {least:g} ({found.message}); allow a larger tolerance or a smaller epsilon"
        )
    weights = np.asarray(found.x[:trees])
    return np.round(weights) if whole else weights
