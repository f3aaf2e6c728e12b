"""Least squares with linear inequalities, for few unknowns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import TraceError

__all__ = ["minimum_excess", "solve_constrained"]

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def solve_constrained(a: Matrix, b: Vector, g: Matrix, h: Vector) -> Vector | None:
    """Minimise |a x - b| subject to g x <= h; returns x. None if infeasible.

    The problem of least distance of Lawson and Hanson (Solving Least Squares Problems, chapter 23).

    Args:
        a: Matrix of full column rank, [m, n].
        b: Right side, [m].
        g: Coefficients of the constraints, [k, n].
        h: Bounds of the constraints, [k].
    """
    # Ranks that only record load this package too, and should not wait for the solvers.
    from scipy.optimize import nnls

    n = a.shape[1]
    factor = np.linalg.qr(np.column_stack([a, b])).R.astype(np.float64)
    r, d = factor[:n, :n], factor[:n, n]
    if not len(g):
        return np.linalg.solve(r, d).astype(np.float64)
    # With z = r x - d: least |z| under e z >= f.
    e = -np.linalg.solve(r.T, g.T).T
    f = -h - e @ d
    length = np.linalg.norm(e, axis=1)
    e, f = e / length[:, None], f / length
    scale = float(f.max(initial=0.0))
    z = np.zeros(n)
    if scale > 0.0:
        target = np.zeros(n + 1)
        target[n] = 1.0
        system = np.vstack([e.T, f / scale])
        weights, _ = nnls(system, target, maxiter=50 * (n + len(g)))
        rest = system @ weights - target
        if abs(rest[n]) < 1e-12:
            return None
        z = -rest[:n] / rest[n] * scale
    return np.linalg.solve(r, z + d).astype(np.float64)


def minimum_excess(g: Matrix, h: Vector) -> float:
    """Least s >= 0 for which some x satisfies g x <= h + s.

    Raises:
        TraceError: No solver succeeds, as h is out of range.
    """
    from scipy.optimize import linprog

    n = g.shape[1]
    # The solver's tolerance is absolute; in millionths it is far below what matters.
    solved = linprog(
        np.append(np.zeros(n), 1.0),
        A_ub=np.column_stack([g, -np.ones(len(g))]),
        b_ub=h * 1e6,
        bounds=[(None, None)] * n + [(0, None)],
    )
    if solved.x is None:
        raise TraceError(
            f"clocks cannot be aligned ({solved.message}); a time in the trace is out of all measure: record again"
        )
    return float(solved.x[n]) / 1e6
