"""Kernel mean matching: weights that give few rows the mean of many (Huang et al., NIPS 2006).

SEA-ER weights the rehearsed nodes so that their embeddings, under the graph structure when they were kept, match
those of their task under the current graph. Sums over target rows are additive, so ranks that hold parts of them
all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = [
    "KERNELS",
    "effective_size",
    "gram",
    "kernel_sums",
    "matched_weights",
    "median_distance",
    "raise_effective_size",
    "solve_matching",
    "squared_distances",
]

KERNELS = ("linear", "rbf")
"""Products of rows, or exp(-d^2 / (2 sigma^2)) of their distances d."""
_STEPS = 3000
_SETTLED = 1e-7
_HALVINGS = 60
_BLOCK = 4096

Rows = NDArray[np.float64]


def median_distance(z: Rows) -> float:
    """Median distance between different rows, [n, d], as a kernel bandwidth; 1 if that is 0 or there is one row."""
    distances = np.sqrt(squared_distances(z, z))[np.triu_indices(len(z), 1)]
    return float(np.median(distances)) if len(distances) and np.median(distances) > 0 else 1.0


def gram(a: Rows, b: Rows, *, kernel: str = "linear", sigma: float = 1.0) -> Rows:
    """Kernel matrix of the rows of a with the rows of b, [len(a), len(b)].

    Raises:
        InputError: The kernel is unknown.
    """
    if kernel not in KERNELS:
        raise InputError(f"kernel {kernel!r} is unknown; expected one of: {', '.join(KERNELS)}")
    if kernel == "linear":
        return a @ b.T
    found: Rows = np.exp(-squared_distances(a, b) / (2 * sigma**2))
    return found


def kernel_sums(z: Rows, x: Rows, *, kernel: str = "linear", sigma: float = 1.0) -> Rows:
    """Sum over the rows of x of their kernel with each row of z, [len(z)]; additive over parts of x."""
    total = np.zeros(len(z))
    for low in range(0, len(x), _BLOCK):
        total += gram(z, x[low : low + _BLOCK], kernel=kernel, sigma=sigma).sum(axis=1)
    return total


def matched_weights(
    z: Rows,
    x: Rows,
    *,
    kernel: str = "linear",
    sigma: float | None = None,
    maximum: float = 1.0,
    slack: float | None = None,
    groups: NDArray[np.int64] | None = None,
    least_effective: float = 0.5,
    total: Callable[[Rows], Rows] | None = None,
) -> Rows:
    """Weights for the rows z that bring their mean close to that of the rows x, [n].

    Args:
        z: Rows to weight, [n, d].
        x: Rows of the target, [m, d].
        kernel: One of `KERNELS`.
        sigma: Bandwidth of rbf. Defaults to the median distance of z.
        maximum: Upper bound of a weight, at least one.
        slack: Tolerance of the sum of weights. Defaults to most / sqrt(n).
        groups: Class of each row, [n]; the sum is bounded in every class separately (see `solve_matching`).
        least_effective: Fraction of n that `effective_size` must reach, see `raise_effective_size`.
        total: Sums an array over ranks that hold the same z and parts of x. None if x is complete.

    Raises:
        InputError: There are no rows, widths differ, or a setting is out of range.
    """
    if not len(z) or z.shape[1] != x.shape[1]:
        raise InputError(f"got rows {z.shape} and target rows {x.shape}; expected rows of the same width")
    z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
    sigma = median_distance(z) if sigma is None else sigma
    sums = np.append(kernel_sums(z, x, kernel=kernel, sigma=sigma), len(x))
    sums = sums if total is None else total(sums)
    if not sums[-1]:
        raise InputError("there are no target rows to match; expected at least one")
    kappa = sums[:-1] * (len(z) / sums[-1])
    inner = gram(z, z, kernel=kernel, sigma=sigma)
    return raise_effective_size(
        solve_matching(inner, kappa, maximum=maximum, slack=slack, groups=groups), least_effective
    )


def solve_matching(
    inner: Rows,
    kappa: Rows,
    *,
    maximum: float = 1.0,
    slack: float | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Rows:
    """Minimise b' K b / 2 - kappa' b with 0 <= b <= most and the sum of b within n (1 -+ slack), [n].

    Accelerated projected gradient from ones, restarted when it stops descending; the projection is exact.

    Args:
        inner: Kernel matrix K of the rows with each other, [n, n].
        kappa: Factor n / m times `kernel_sums` over the m target rows, [n].
        maximum: Upper bound of a weight, at least one.
        slack: Tolerance of the sum of weights. Defaults to most / sqrt(n).
        groups: Class of each row, [n]; the sum is bounded in every class separately, so that none is left out.

    Raises:
        InputError: The upper bound is below one, which makes a sum of n infeasible, or the slack is negative.
    """
    slack = maximum / np.sqrt(len(kappa)) if slack is None else slack
    if maximum < 1 or slack < 0:
        raise InputError(
            f"got a largest weight of {maximum} and a slack of {slack}; expected at least 1 and 0"
        )
    members = (
        [np.flatnonzero(groups == g) for g in np.unique(groups)] if groups is not None else [slice(None)]
    )
    step = 1 / max(float(np.linalg.norm(inner, 2)), 1e-12)
    b = ahead = np.ones(len(kappa))
    pace = 1.0
    for _ in range(_STEPS):
        after = ahead - step * (inner @ ahead - kappa)
        for group in members:
            after[group] = _project(after[group], maximum, slack)
        moved = after - b
        if moved @ (ahead - after) > 0:
            pace = 1.0
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead = after + (pace - 1) / faster * moved
        b, pace = after, faster
        if np.abs(moved).max() < _SETTLED:
            break
    return b


def _project(values: Rows, maximum: float, slack: float) -> Rows:
    """The nearest point with values from 0 to `maximum` and a sum within n (1 -+ slack)."""
    inside = np.clip(values, 0, maximum)
    goal = np.clip(inside.sum(), len(values) * (1 - slack), len(values) * (1 + slack))
    if goal == inside.sum():
        return inside
    low, high = values.min() - maximum, values.max()
    for _ in range(_HALVINGS):
        shift = (low + high) / 2
        if np.clip(values - shift, 0, maximum).sum() > goal:
            low = shift
        else:
            high = shift
    return np.clip(values - high, 0, maximum)


def effective_size(b: Rows) -> float:
    """Effective sample size of weights, (sum b)^2 / sum b^2; 0 if all are 0."""
    squares = float(b @ b)
    return float(b.sum()) ** 2 / squares if squares else 0.0


def raise_effective_size(b: Rows, minimum: float = 0.5) -> Rows:
    """Move the weights towards ones just until `effective_size` is at least `minimum` of n."""
    if effective_size(b) >= minimum * len(b):
        return b
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        if effective_size(b + share * (1 - b)) < minimum * len(b):
            low = share
        else:
            high = share
    return b + high * (1 - b)


def squared_distances(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Squared distance of each row of a from each row of b, [len(a), len(b)], in their dtype."""
    found: NDArray[Any] = np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0)
    return found
