"""Choices with pairwise costs: exact reductions, then a linear and an integer programme for the rest.

Every variable takes one of its values; costs are of values and of pairs of values, and so is the memory under a limit.
A variable with at most two neighbours is eliminated by dynamic programming over its values, which is exact (Scholz,
Eckstein, "Register allocation for irregular architectures", 2002). The rest is solved as a linear program, whose
solution is mostly integral; if not, as an integer program with a bound on its optimality gap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from wirewise import work
from wirewise.planners.solvers import mixed_integer, sparse_iteration_s

__all__ = ["Assignment", "ChoiceProblem"]

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_INTEGRAL = 1e-6
_MOST_ROW = 60_000
"""Entries of a table of two variables at most that taking out a third one makes."""
_OF_EQUALS = 1e-5
"""How much a cost counts where the least memory is looked for, as a fraction of the largest of both."""
_SPREAD = 1e4
_STEPS = 10
"""Prices of memory that are tried."""
_ITERATIONS_PER_ROW = 0.45
"""Iterations of a linear programme: 1 752 of 4 155 rows, 15 556 of 30 292 (Mixtral of two layers on 2 x 2 ranks)."""
_ENTRY_S = 1e-8
"""Work of an entry of a table while a variable is taken out."""
_GAP = 1e-4
_LIGHTEST_S = 30.0


class Assignment(NamedTuple):
    """Value of each variable, with cost and bound."""

    values: list[int]
    cost: float
    memory: float
    bound: float
    """Lower bound of the cost within the limit."""
    linear: bool
    """Whether the linear relaxation alone found them."""


class _Pair(NamedTuple):
    cost: Matrix
    memory: Matrix


class _Removed(NamedTuple):
    """A variable that was taken out: its best value for each pair of values of its neighbours."""

    variable: int
    neighbours: tuple[int, ...]
    best: NDArray[np.int64]
    best_cost: float = 0.0
    """Cost of the variable where it has no neighbours."""


class ChoiceProblem:
    """Variables, their values, and unary and pairwise costs."""

    def __init__(self) -> None:
        self.cost: list[Vector] = []
        self.memory: list[Vector] = []
        self.pairs: dict[tuple[int, int], Matrix] = {}

    def add(self, cost: Vector, memory: Vector | None = None) -> int:
        """Add a variable with one value per cost; returns its index."""
        self.cost.append(np.asarray(cost, np.float64))
        self.memory.append(np.zeros(len(cost)) if memory is None else np.asarray(memory, np.float64))
        return len(self.cost) - 1

    def join(self, first: int, second: int, cost: Matrix) -> None:
        """Add pairwise costs of two variables, [values of first, values of second]."""
        if first == second:
            self.cost[first] = self.cost[first] + np.diagonal(cost)
            return
        if first > second:
            first, second, cost = second, first, cost.T
        before = self.pairs.get((first, second))
        self.pairs[first, second] = cost.copy() if before is None else before + cost

    def preferring(self, preferred: Mapping[int, NDArray[np.bool_]]) -> ChoiceProblem:
        """Problem in which non-preferred values cost more than all others together; value indices are unchanged.

        Args:
            preferred: Preferred values by variable; all values of other variables are preferred.
        """
        most = 1.0 + sum(
            float(table[np.isfinite(table)].max(initial=0.0)) for table in (*self.cost, *self.pairs.values())
        )
        found = ChoiceProblem()
        found.memory, found.pairs = self.memory, self.pairs
        found.cost = [
            cost + most * ~preferred[variable] if variable in preferred else cost
            for variable, cost in enumerate(self.cost)
        ]
        return found

    def total(self, values: Sequence[int]) -> tuple[float, float]:
        """Total cost and memory of an assignment."""
        own = sum(float(cost[v]) for cost, v in zip(self.cost, values, strict=True))
        both = sum(float(cost[values[a], values[b]]) for (a, b), cost in self.pairs.items())
        return own + both, sum(float(m[v]) for m, v in zip(self.memory, values, strict=True))

    def solve(
        self,
        *,
        memory: float = np.inf,
        time_limit_s: float = 60.0,
        fixed: dict[int, int] | None = None,
    ) -> Assignment | None:
        """Find the cheapest values within a memory limit. None if infeasible.

        Memory is priced (Lagrangian relaxation); the price rises until the values fit, and the dual bound at every
        price bounds the problem.

        Args:
            memory: Limit of the total memory of all values.
            time_limit_s: Total work of all programmes, in seconds of an unloaded CPU (`wirewise.work`).
            fixed: Values of variables to fix.
        """
        ends = work.spent_s() + time_limit_s
        free = self._priced(0.0, fixed, np.inf, ends)
        if free is None or free.memory <= memory:
            return free
        least = self._lightest(fixed)
        if least is None or least.memory > memory:
            return None
        low, high, best = 0.0, max(free.cost, 1e-9) / max(memory, 1.0), least
        bound = free.bound
        for _ in range(_STEPS):
            found = self._priced(high, fixed, memory, ends)
            if found is None:
                break
            bound = max(bound, found.bound - high * memory)
            if found.memory <= memory:
                best = min(best, found, key=lambda one: one.cost)
                high = (low * high) ** 0.5 if low else high / 8
            else:
                low, high = high, high * 4 if best is least else (high * max(high, low) * 2) ** 0.5
            if best.cost - bound <= 1e-3 * abs(best.cost) or work.spent_s() > ends:
                break
        return best._replace(bound=min(bound, best.cost))

    def table(self, first: int, second: int, *, maximum: int, time_limit_s: float = 60.0) -> Matrix:
        """Least cost of all others for each pair of values of two variables; infinite for pairs not evaluated.

        Args:
            first: Variable of the rows.
            second: Variable of the columns; if equal to the first, a table with one column.
            maximum: Number of values of each variable to evaluate, those cheapest with their neighbours alone.
            time_limit_s: Total work of all pairs, in seconds of an unloaded CPU.
        """
        core = _Core(list(self.cost), dict(self.pairs))
        core.reduce({first, second})
        found = np.full((len(self.cost[first]), len(self.cost[second]) if second != first else 1), np.inf)
        ends = work.spent_s() + time_limit_s
        for row in core.promising(first, maximum):
            for column in core.promising(second, maximum) if second != first else [0]:
                taken = {first: row} | ({second: column} if second != first else {})
                at = core.kept[second][column] if second != first else 0
                found[core.kept[first][row], at] = core.least(taken, max(ends - work.spent_s(), 0.05))
        return found

    def solve_lightest(self) -> Assignment | None:
        """Find the values with the least memory. None if infeasible."""
        return self._lightest(None)

    def _lightest(self, fixed: dict[int, int] | None) -> Assignment | None:
        largest = [
            max(float(one[np.isfinite(one)].max(initial=0.0)) for one in of)
            for of in (self.memory, self.cost)
        ]
        scale = _OF_EQUALS * max(largest[0], 1.0) / max(largest[1], 1e-30)
        found = ChoiceProblem()
        for cost, memory in zip(self.cost, self.memory, strict=True):
            found.add(
                np.where(np.isfinite(cost), memory + scale * np.where(np.isfinite(cost), cost, 0.0), np.inf)
            )
        found.pairs = {
            key: np.where(np.isfinite(pair), scale * np.where(np.isfinite(pair), pair, 0.0), np.inf)
            for key, pair in self.pairs.items()
        }
        chosen = found._priced(0.0, fixed, np.inf, work.spent_s() + _LIGHTEST_S)
        if chosen is None:
            return None
        total, needed = self.total(chosen.values)
        return Assignment(chosen.values, total, needed, -np.inf, chosen.linear)

    def _priced(
        self, price: float, fixed: dict[int, int] | None, limit: float, ends: float
    ) -> Assignment | None:
        """The cheapest values where memory has a price; `bound` counts it."""
        unary = [cost + price * memory for cost, memory in zip(self.cost, self.memory, strict=True)]
        for variable, value in (fixed or {}).items():
            kept = np.full(len(unary[variable]), np.inf)
            kept[value] = unary[variable][value]
            unary[variable] = kept
        core = _Core(unary, dict(self.pairs))
        if any(not len(one) for one in core.cost):
            return None
        core.reduce()
        solved = core.solve(max(ends - work.spent_s(), 0.5))
        if solved is None:
            return None
        values, bound, linear = solved
        cost, memory = self.total(values)
        return Assignment(values, cost, memory, min(bound, cost + price * memory), linear)


class _Core:
    """Rest of a problem while variables are eliminated."""

    def __init__(self, cost: list[Vector], pairs: dict[tuple[int, int], Matrix]) -> None:
        # Values that cannot be taken only make tables larger.
        self.kept = [np.flatnonzero(np.isfinite(one)) for one in cost]
        self.cost = [one[kept] for one, kept in zip(cost, self.kept, strict=True)]
        self.pairs = {(a, b): m[np.ix_(self.kept[a], self.kept[b])] for (a, b), m in pairs.items()}
        self.near: list[set[int]] = [set() for _ in cost]
        for a, b in self.pairs:
            self.near[a].add(b)
            self.near[b].add(a)
        self.left = set(range(len(cost)))
        self.removed: list[_Removed] = []

    def table(self, first: int, second: int) -> Matrix:
        """Costs of two variables, [values of first, values of second]."""
        return self.pairs[first, second] if first < second else self.pairs[second, first].T

    def reduce(self, keep: Collection[int] = ()) -> None:
        """Take out variables with at most two neighbours, the fewest values first, as long as there are any.

        Args:
            keep: Variables that stay.
        """
        ready = sorted(self.left.difference(keep), key=lambda v: (len(self.near[v]) > 2, len(self.cost[v])))
        while ready:
            again: set[int] = set()
            for variable in ready:
                if variable in self.left and len(self.near[variable]) <= 2:
                    again |= self._take_out(variable)
            ready = sorted((again & self.left).difference(keep), key=lambda v: len(self.cost[v]))

    def _take_out(self, variable: int) -> set[int]:
        near = tuple(sorted(self.near[variable]))
        if len(near) == 2 and len(self.cost[near[0]]) * len(self.cost[near[1]]) > _MOST_ROW:
            return set()
        cost = self.cost[variable]
        work.charge(_ENTRY_S * len(cost) * prod(len(self.cost[other]) for other in near))
        if not near:
            best = np.array(int(np.argmin(cost)) if len(cost) else 0)
        elif len(near) == 1:
            both = self.table(near[0], variable) + cost
            best = both.argmin(axis=1)
            self.cost[near[0]] = self.cost[near[0]] + np.take_along_axis(both, best[:, None], 1)[:, 0]
        else:
            first, second = self.table(near[0], variable) + cost, self.table(variable, near[1])
            best = np.zeros((len(first), second.shape[1]), np.int64)
            low = np.full(best.shape, np.inf)
            for value in range(len(cost)):
                both = first[:, value, None] + second[value]
                better = both < low
                best[better], low[better] = value, both[better]
            key = (near[0], near[1])
            self.pairs[key] = low if key not in self.pairs else self.pairs[key] + low
            self.near[near[0]].add(near[1])
            self.near[near[1]].add(near[0])
        for other in near:
            self.pairs.pop((min(variable, other), max(variable, other)))
            self.near[other].discard(variable)
        self.near[variable].clear()
        self.left.discard(variable)
        least = float(cost.min(initial=np.inf)) if not near else 0.0
        self.removed.append(_Removed(variable, near, best, least))
        return set(near)

    def promising(self, variable: int, maximum: int) -> list[int]:
        """Values that are cheapest when each neighbour takes what suits it best."""
        least = self.cost[variable].copy()
        for other in self.near[variable]:
            least += (self.table(variable, other) + self.cost[other]).min(axis=1)
        order = np.argsort(least, kind="stable")[:maximum]
        return [int(value) for value in order if np.isfinite(least[value])]

    def least(self, taken: dict[int, int], time_limit_s: float) -> float:
        """Least cost with these values of variables that are left."""
        fixed = sum(float(self.cost[v][value]) for v, value in taken.items())
        fixed += sum(float(one.best_cost) for one in self.removed if not one.neighbours)
        rest = {v: self.cost[v].copy() for v in self.left if v not in taken}
        pairs = {}
        for (a, b), table in self.pairs.items():
            if a in taken and b in taken:
                fixed += float(table[taken[a], taken[b]])
            elif a in taken:
                rest[b] += table[taken[a]]
            elif b in taken:
                rest[a] += table[:, taken[b]]
            else:
                pairs[a, b] = table
        if not rest or not np.isfinite(fixed):
            return fixed
        small = ChoiceProblem()
        number = {v: small.add(cost) for v, cost in rest.items()}
        for (a, b), table in pairs.items():
            small.join(number[a], number[b], table)
        found = small.solve(time_limit_s=time_limit_s)
        return np.inf if found is None else fixed + found.bound

    def solve(self, time_limit_s: float) -> tuple[list[int], float, bool] | None:
        """Values of all variables, a bound of the cost, and whether the linear programme was enough."""
        values: dict[int, int] = {}
        bound, linear = 0.0, True
        if self.left:
            found = _programmed(
                sorted(self.left),
                self.cost,
                {k: m for k, m in self.pairs.items() if self.left >= set(k)},
                time_limit_s,
            )
            if found is None:
                return None
            values, bound, linear = found
        for one in reversed(self.removed):
            bound += one.best_cost
            values[one.variable] = int(one.best[tuple(values[v] for v in one.neighbours)])
        # Infinite pairs among what was taken out show here alone.
        chosen = [int(self.kept[v][values[v]]) for v in range(len(self.cost))]
        return (chosen, bound, linear) if np.isfinite(bound) else None


def _programmed(
    left: list[int], cost: list[Vector], pairs: dict[tuple[int, int], Matrix], time_limit_s: float
) -> tuple[dict[int, int], float, bool] | None:
    """Values of the variables that are left, by a linear programme and, where that is not integral, an integer one.

    A value is a binary; a pair of values that may be taken together is a flow between both, whose sums over either side
    are the binaries. Flows are integral where binaries are.
    """
    starts = dict(
        zip(left, np.concatenate([[0], np.cumsum([len(cost[v]) for v in left])]).tolist(), strict=False)
    )
    binaries = sum(len(cost[v]) for v in left)
    objective = [np.concatenate([cost[v] for v in left])]
    rows, columns, entries = list[NDArray[np.int64]](), list[NDArray[np.int64]](), list[Vector]()
    right, row, column = list[float](), 0, binaries

    def put(at: NDArray[np.int64], of: NDArray[np.int64], value: float) -> None:
        rows.append(at)
        columns.append(of)
        entries.append(np.full(len(at), value))

    for v in left:
        own = np.arange(len(cost[v]))
        put(np.full(len(own), row), starts[v] + own, 1.0)
        right.append(1.0)
        row += 1
    for (a, b), table in pairs.items():
        first, second = np.nonzero(np.isfinite(table))
        flows = column + np.arange(len(first))
        objective.append(table[first, second])
        for v, own in ((a, first), (b, second)):
            size = len(cost[v])
            put(row + own, flows, 1.0)
            put(row + np.arange(size), starts[v] + np.arange(size), -1.0)
            right += [0.0] * size
            row += size
        column += len(first)
    c = np.concatenate(objective)
    # What became impossible while others were taken out.
    possible = np.isfinite(c)
    c = np.where(possible, c, 0.0)
    scale = max(float(c.max(initial=0.0)) / _SPREAD, 1e-30)
    matrix = coo_array(
        (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))), shape=(row, column)
    ).tocsr()
    given = {
        "constraints": LinearConstraint(matrix, np.array(right), np.array(right)),
        "bounds": Bounds(0.0, possible.astype(np.float64)),
    }
    iteration_s = sparse_iteration_s(row)
    needed_s = iteration_s * _ITERATIONS_PER_ROW * row
    if needed_s > time_limit_s:
        return None
    found = milp(c / scale, **given)
    work.charge(needed_s)
    linear = True
    if found.x is None:
        return None
    bound = float(found.fun)
    if np.abs(found.x[:binaries] - np.round(found.x[:binaries])).max() > _INTEGRAL:
        integrality = np.zeros(column)
        integrality[:binaries] = 1
        linear, found = (
            False,
            mixed_integer(
                c / scale,
                budget_s=time_limit_s - needed_s,
                gap=_GAP,
                iteration_s=iteration_s,
                integrality=integrality,
                **given,
            ),
        )
        if found.x is None:
            return None
        bound = max(bound, float(found.mip_dual_bound))
    values = {v: int(np.argmax(found.x[starts[v] : starts[v] + len(cost[v])])) for v in left}
    return values, bound * scale, linear
