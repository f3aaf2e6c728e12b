"""Optimal groups for one option with linear costs, by dynamic programming.

If encoding costs alpha_h + beta_h x, the end of compute depends on the number of groups k but not on their
boundaries: C(j, k) = ready(j) + k alpha_h + beta_h S(j). A collective ends earlier if the one before ends earlier, so

    M(j, k) = min over i < j of max(M(i, k - 1), C(j, k)) + alpha_g + beta_g (S(j) - S(i))

and the best step is A + the least M(n, k). n^2 steps for each k; k stops when compute or sending alone takes too
long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.arrays import Vector
from wirewise.planners.fusion.cupcake.problem import CompressionProblem, GradientGroup
from wirewise.sim.compiled import outer

__all__ = ["Lines", "lines", "solve_linear", "spans"]


class Lines(NamedTuple):
    """Linear cost of a group, in seconds: alpha + beta * elements."""

    encode: tuple[float, float]
    send: tuple[float, float]
    """Seconds to send, with decoding, which is part of the collective's slot."""


def lines(problem: CompressionProblem) -> Lines | None:
    """Linear costs if dynamic programming applies: an option, linear, decoded inline, encoded on the compute thread."""
    if len(problem.options) != 1 or problem.encode_contention is not None:
        return None
    (option,), whole = problem.options, float(problem.element_sums[-1])
    if option.decode != "inline":
        return None
    encode, send = (
        option.encode_s.linear_coefficients(whole),
        (option.communicate_s + option.decode_s).linear_coefficients(whole),
    )
    return Lines(encode, send) if encode is not None and send is not None else None


def solve_linear(problem: CompressionProblem, costs: Lines, limit_s: float = np.inf) -> list[GradientGroup]:
    """Find the grouping with the earliest end.

    Args:
        problem: Gradients, codecs and links.
        costs: Result of `lines` for the problem.
        limit_s: Known upper bound of the end, in seconds after the forward pass.
    """
    return [
        GradientGroup(first, end - 1, 0)
        for first, end in spans(problem.ready_s, problem.element_sums, costs, limit_s)
    ]


def spans(ready_s: Vector, sums: Vector, costs: Lines, limit_s: float = np.inf) -> list[tuple[int, int]]:
    """First tensor of each group, and the end of the group, exclusive.

    Args:
        ready_s: Time at which the first j tensors are ready, in seconds, [tensors + 1].
        sums: Total elements of the first j tensors, [tensors + 1].
        costs: Cost of a group.
        limit_s: Known upper bound of the end, in seconds after the forward pass.
    """
    end = len(sums) - 1
    came, found = np.zeros((end + 1, end + 1), dtype=np.int32), list[tuple[int, int]]()
    count = _table(ready_s, sums, *costs.encode, *costs.send, limit_s, came)
    for k in range(int(count), 0, -1):
        first = int(came[k, end])
        found.append((first, end))
        end = first
    return found[::-1]


@outer
def _table(
    ready: Vector, sums: Vector, alpha_h: float, beta_h: float, alpha_g: float, beta_g: float, limit: float,
    came: NDArray[np.int32],
) -> int:  # fmt: skip
    """Fill in where the last of k groups that end at j begins, [k, j], and return the best k."""
    n = len(ready) - 1
    ends, following = np.full(n + 1, np.inf), np.full(n + 1, np.inf)
    ends[0] = 0.0
    best, best_count = np.inf, 1
    for k in range(1, n + 1):
        # Two bounds: all is computed and the last tensor sent, or the first is computed and all are sent.
        computed = ready[n] + k * alpha_h + beta_h * sums[n] + alpha_g + beta_g * (sums[n] - sums[n - 1])
        sent = ready[1] + alpha_h + beta_h * sums[1] + k * alpha_g + beta_g * sums[n]
        if max(computed, sent * (1 - 1e-12)) >= min(best, limit * (1 + 1e-12)):
            break
        following[:] = np.inf
        for j in range(k, n + 1):
            done = ready[j] + k * alpha_h + beta_h * sums[j]
            for i in range(k - 1, j):
                end = max(ends[i], done) + alpha_g + beta_g * (sums[j] - sums[i])
                if end < following[j]:
                    following[j], came[k, j] = end, i
        if following[n] < best:
            best, best_count = following[n], k
        ends, following = following, ends
    return best_count
