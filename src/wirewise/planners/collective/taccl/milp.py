"""Mixed-integer program built column by column and row by row, solved by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from wirewise.planners.solvers import charge_nodes, nodes_within

__all__ = ["Model", "Solution"]


class Solution(NamedTuple):
    """Result of the solver."""

    values: NDArray[np.float64]
    """Values of the columns."""
    objective: float
    bound: float
    """Lower bound of the objective."""
    optimal: bool


class Model:
    """Model that minimises the sum of priced columns."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._price: list[float] = []
        self._integer: list[bool] = []
        self._rows: dict[tuple[tuple[tuple[int, float], ...], float, float], None] = {}

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        return len(self._lower), len(self._rows)

    def column(
        self, lower: float = 0.0, upper: float = math.inf, *, integer: bool = False, price: float = 0.0
    ) -> int:
        """Add a variable, and return its index."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._integer.append(integer)
        self._price.append(price)
        return len(self._lower) - 1

    def row(self, terms: Mapping[int, float], lower: float = -math.inf, upper: float = math.inf) -> None:
        """Add a constraint; duplicates, which arise from symmetry, are skipped."""
        kept = tuple(sorted((c, v) for c, v in terms.items() if v))
        self._rows[kept, lower, upper] = None

    def price(self, column: int, price: float) -> None:
        """Set the objective coefficient of a column."""
        self._price[column] = price

    def limit(self, column: int, upper: float) -> None:
        """Set the upper bound of a column."""
        self._upper[column] = upper

    def solve(
        self, time_limit_s: float, *, seed: int = 0, start: Sequence[float] | None = None, gap: float = 0.0
    ) -> Solution | None:
        """Solve the program.

        Args:
            time_limit_s: Limit of work, in seconds of an unloaded CPU, after which the best solution is returned.
            seed: Seed of the solver's random choices.
            start: Initial feasible solution.
            gap: Absolute gap between objective and bound at which to stop.

        Returns:
            The solution. None if none was found, or none exists.
        """
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        entries = sum(len(terms) for terms, _, _ in self._rows)
        for name, value in (
            ("output_flag", False),
            ("mip_max_nodes", nodes_within(time_limit_s, entries)),
            ("random_seed", seed),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", max(gap, 1e-6)),
            ("parallel", "off"),
        ):
            solver.setOptionValue(name, value)
        solver.passModel(self._lp())
        if start is not None:
            given = highspy.HighsSolution()
            given.col_value = list(start)
            solver.setSolution(given)
        solver.run()
        info = solver.getInfo()
        charge_nodes(max(int(info.mip_node_count), 0), entries)
        if info.primal_solution_status != 2:
            return None
        optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        values = np.array(solver.getSolution().col_value)
        bound = info.mip_dual_bound if any(self._integer) else info.objective_function_value
        return Solution(values, info.objective_function_value, bound, optimal)

    def _lp(self) -> highspy.HighsLp:
        starts, index, value = [0], list[int](), list[float]()
        for terms, _, _ in self._rows:
            index += [c for c, _ in terms]
            value += [v for _, v in terms]
            starts.append(len(index))
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.size
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = map(np.array, (self._price, self._lower, self._upper))
        lp.row_lower_ = np.array([lower for _, lower, _ in self._rows])
        lp.row_upper_ = np.array([upper for _, _, upper in self._rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array(starts), np.array(index)
        lp.a_matrix_.value_ = np.array(value)
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if i else kinds.kContinuous for i in self._integer]
        return lp
