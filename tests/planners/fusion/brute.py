"""The best of all plans for compressed groups, by trying each one; shares no code with the planner but the curves."""

from __future__ import annotations

import numpy as np
from numba import njit

from wirewise.planners.fusion.cupcake import CompressionProblem

__all__ = ["best_of_all"]

PLACES = ("inline", "lazy", "queue")


def best_of_all(problem: CompressionProblem) -> tuple[float, int]:
    """Seconds of the best plan, and how many plans there are.

    Args:
        problem: Problem of few tensors: with n tensors and o options there are o (o + 1)^(n - 1) plans.
    """
    share = problem.encode_contention
    places = np.array([PLACES.index(option.decode) for option in problem.options])
    gaps = np.array(problem.gaps_s, dtype=np.float64)
    seconds, count = _walk(gaps, _costs(problem), places, -1.0 if share is None else share)
    return problem.forward_s + seconds, count


def _costs(problem: CompressionProblem) -> np.ndarray:
    """Seconds to encode, send and decode tensors first to last, [first, last, option, 3]."""
    n = len(problem.elements)
    sizes = np.zeros((n, n))
    for first in range(n):
        sizes[first, first:] = np.cumsum(problem.elements[first:])
    parts = [(o.encode_s, o.communicate_s, o.decode_s) for o in problem.options]
    return np.array([[part(sizes) for part in each] for each in parts]).transpose(2, 3, 0, 1).copy()


@njit(cache=True)
def _walk(gaps, costs, places, share):
    """Through the tree of all plans, depth first; a level is a group, and keeps when the threads are done with it."""
    n, options = costs.shape[0], costs.shape[2]
    computed, encoder, wire, queue = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    arrived, lazy = np.zeros(n + 1), np.full(n + 1, -1.0)
    first, last, option = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1)
    best, count, k = np.inf, 0, 0
    while k >= 0:
        option[k] += 1
        if option[k] == options:
            option[k], last[k] = 0, last[k] + 1
        if last[k] == n:
            k -= 1
            continue
        h, g, d = costs[first[k], last[k], option[k]]
        begin = computed[k]
        for i in range(first[k], last[k] + 1):
            begin += gaps[i]
        computed[k + 1] = begin + (h if share < 0 else share * h)
        encoder[k + 1] = begin + h if share < 0 else max(encoder[k], begin) + h
        wire[k + 1], queue[k + 1], lazy[k + 1] = max(wire[k], encoder[k + 1]) + g, queue[k], -1.0
        place = places[option[k]]
        if place == 0:
            wire[k + 1] += d
        elif place == 1:
            arrived[k + 1], lazy[k + 1] = wire[k + 1], d
        else:
            queue[k + 1] = max(queue[k], wire[k + 1]) + d
        k += 1
        if last[k - 1] == n - 1:
            count += 1
            end = computed[k]
            for group in range(1, k + 1):
                if lazy[group] >= 0:
                    end = max(end, arrived[group]) + lazy[group]
            best = min(best, max(max(end, wire[k]), max(queue[k], encoder[k])))
            k -= 1
        else:
            first[k], last[k], option[k] = last[k - 1] + 1, last[k - 1] + 1, -1
    return best, count
