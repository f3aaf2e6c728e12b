"""Choice of ops to duplicate, so that their gradients need no exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

__all__ = ["FactorProblem", "duplicated_ops", "gain_s"]


class FactorProblem(NamedTuple):
    """Costs and savings of duplicating n ops on all replicas."""

    extra_s: Sequence[float]
    """Extra seconds of computing the whole batch everywhere instead of own rows only, [n]."""
    saved_s: Sequence[float]
    """Seconds of the gradient exchange that duplicating an op saves, [n]."""
    broadcast_s: Sequence[float]
    """Seconds to send the output of an op that is not duplicated to all replicas, [n]."""
    edges: Sequence[tuple[int, int]]
    """Pairs of ops, by index: producer and consumer."""
    fixed: Sequence[int] = ()
    """Ops that cannot be duplicated."""


def duplicated_ops(problem: FactorProblem) -> list[int]:
    """Find the ops to duplicate for the least total time, as indices.

    Sufficient-factor broadcasting, generalised by S. Zhang et al. (TAG, TPDS 2023). Minimise the sum of
    `(extra - saved) x + broadcast b` with `b >= x(reader) - x(op)` and x, b of 0 or 1: a minimum cut, so the linear
    relaxation, which HiGHS solves in polynomial time, has an optimum of whole numbers. An output that several ops read
    is sent once.
    """
    n, edges = len(problem.extra_s), list(problem.edges)
    cost = np.concatenate(
        [np.subtract(problem.extra_s, problem.saved_s), np.asarray(problem.broadcast_s, np.float64)]
    )
    if not (cost[:n] < 0).any():
        return []
    # One part in a billion of the largest figure prefers fewer duplicates among equals.
    cost[:n] += 1e-9 * np.abs(cost).max()
    rows = np.repeat(np.arange(len(edges)), 3)
    columns = [place for u, v in edges for place in (v, u, n + u)]
    matrix = csr_array((np.tile([1.0, -1.0, -1.0], len(edges)), (rows, columns)), shape=(len(edges), 2 * n))
    most = np.ones(2 * n)
    most[list(problem.fixed)] = 0.0
    found = linprog(
        cost,
        A_ub=matrix if edges else None,
        b_ub=np.zeros(len(edges)) if edges else None,
        bounds=np.stack([np.zeros(2 * n), most], axis=1),
        method="highs-ds",
    )
    return np.flatnonzero(found.x[:n] > 0.5).tolist()


def gain_s(problem: FactorProblem, duplicated: Sequence[int]) -> float:
    """Seconds saved by duplicating some ops."""
    x: NDArray[np.bool_] = np.zeros(len(problem.extra_s), bool)
    x[list(duplicated)] = True
    sent = {u for u, v in problem.edges if x[v] and not x[u]}
    own = np.subtract(problem.saved_s, problem.extra_s)[x].sum()
    return float(own - sum(problem.broadcast_s[u] for u in sent))
