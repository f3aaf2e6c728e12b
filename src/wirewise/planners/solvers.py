"""HiGHS with work limits: iterations and nodes, never seconds.

A limit in seconds stops earlier on a busy machine than on an idle one. Counts are derived from the budget and the
size of the matrix; the work done is charged (`wirewise.work`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize  # type: ignore[import-untyped,unused-ignore]

from wirewise import work

__all__ = ["charge_nodes", "linear", "mixed_integer", "nodes_within", "sparse_iteration_s"]

_ITERATION_S, _ENTRY_S = 5e-6, 4e-8
"""Work of a simplex iteration, and its part that grows with the entries of the matrix."""
_ROW_S = 2.6e-8
"""Work of an iteration for each row of a sparse matrix: 0.1 ms of 4 155 rows and 28 000 entries, 0.8 ms of 30 292 rows
and 1.2 million."""
_ITERATIONS_PER_NODE = 160
"""Iterations that a node stands for, with what heuristics and cuts take besides: 18 on a covering problem; routings of
TACCL and points of SCCL take 100 to 250 of this time."""


def _iteration_s(entries: int) -> float:
    return _ITERATION_S + _ENTRY_S * entries


def sparse_iteration_s(rows: int) -> float:
    """Work of a simplex iteration with few entries per row, in seconds of an unloaded CPU."""
    return _ROW_S * rows


def nodes_within(budget_s: float, entries: int) -> int:
    """Number of branch-and-bound nodes within a budget, at least one.

    Args:
        budget_s: Work limit of the search, in seconds of an unloaded CPU.
        entries: Number of matrix entries.
    """
    return max(int(min(budget_s, 1e6) / (_ITERATIONS_PER_NODE * _iteration_s(entries))), 1)


def charge_nodes(nodes: int, entries: int) -> None:
    """Charge the work of a search tree; its root counts as a node."""
    work.charge((nodes + 1) * _ITERATIONS_PER_NODE * _iteration_s(entries))


def linear(cost: Any, *, budget_s: float, **model: Any) -> Any:
    """Solve a linear program like `scipy.optimize.linprog`, with an iteration limit from the budget.

    Args:
        cost: Cost of each column, [columns].
        budget_s: Work limit, in seconds of an unloaded CPU.
        model: Rows and bounds, as in `linprog`.

    Returns:
        Result of `linprog`; status 1 if the iteration limit was reached.
    """
    entries = sum(_entries(model.get(name)) for name in ("A_ub", "A_eq"))
    most = max(int(min(budget_s, 1e6) / _iteration_s(entries)), 100)
    found = optimize.linprog(cost, method="highs", options={"maxiter": most}, **model)
    work.charge(int(found.nit) * _iteration_s(entries))
    return found


def mixed_integer(
    cost: Any, *, budget_s: float, gap: float = 0.0, iteration_s: float | None = None, **model: Any
) -> Any:
    """Solve a mixed-integer program like `scipy.optimize.milp`, with a node limit from the budget.

    Args:
        cost: Cost of each column, [columns].
        budget_s: Work limit, in seconds of an unloaded CPU.
        gap: Relative gap at which to stop.
        iteration_s: Work of a simplex iteration, in seconds. Defaults to an estimate from the number of matrix
            entries.
        model: Constraints, bounds and integrality, as in `milp`.

    Returns:
        Result of `milp`; status 1 if the node limit was reached, or is zero.
    """
    rows = model.get("constraints")
    each = rows if isinstance(rows, list | tuple) else [] if rows is None else [rows]
    if iteration_s is None:
        iteration_s = _iteration_s(sum(_entries(one.A) for one in each))
    node_s = _ITERATIONS_PER_NODE * iteration_s
    if budget_s < node_s:
        return optimize.OptimizeResult(x=None, status=1, message="the limit allows no node")
    options = {"node_limit": max(int(min(budget_s, 1e6) / node_s), 1), "mip_rel_gap": gap}
    found = optimize.milp(cost, options=options, **model)
    work.charge((int(getattr(found, "mip_node_count", None) or 0) + 1) * node_s)
    return found


def _entries(matrix: Any) -> int:
    if matrix is None:
        return 0
    return int(matrix.nnz) if hasattr(matrix, "nnz") else int(np.count_nonzero(matrix))
