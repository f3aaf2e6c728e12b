"""Lower bounds on the step, for all plans and for those with a given beginning.

The threads that work on gradients (compute, collectives, decoding) are each busy, or idle for a known reason, from
some time on, so each gives T >= A + current end + least remaining time. The remaining time is a sum over groups whose
boundaries are unknown. If a curve f lies above b x, groups of R elements take at least b R + (f(x) - b x) of the
first group + the same of the last one, at the minimising sizes x; and the thread waits for the first group's encoding
and for what follows the last group. A convex combination of two threads' bounds is a bound as well, sharper than both
where options trade compute for communication (a Lagrange multiplier).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wirewise.planners.arrays import Vector
from wirewise.planners.fusion.cupcake.problem import CompressionProblem
from wirewise.plans.fusion import DECODES

__all__ = ["COMPUTED", "ENCODED", "LAZY", "LAZY_WORK", "QUEUE", "SENT", "Cuts", "cuts", "lower_bound_s"]

Weights = tuple[float, float, float, float, float]
"""Weights of a group's seconds to encode, send, decode inline, lazily, on a queue."""

COMPUTED, ENCODED, SENT, LAZY, LAZY_WORK, QUEUE = range(6)
"""Places in a label: C, E, M, L, D, Q of `problem`."""
_NONE: Weights = (0, 0, 0, 0, 0)


class Cuts(NamedTuple):
    """Bounds T - A >= share[r] @ label + rest_s[r, j] for a label of the first j tensors, for any continuation."""

    share: Vector
    """Coefficients of a label, [cuts, 6]."""
    rest_s: Vector
    """[cuts, tensors + 1]; 0 at the end, where the largest cut is the step itself."""


@dataclass(frozen=True)
class _Bound:
    """Cuts of one thread."""

    places: tuple[int, ...]
    fixed_s: Vector
    """Fixed seconds behind the first j tensors, [tensors + 1]."""
    each: Weights
    """Cost that every group adds."""
    first: Weights = _NONE
    """Cost that the first group adds beside that."""
    last: Weights = _NONE


def lower_bound_s(problem: CompressionProblem, mixtures: int = 63) -> float:
    """Lower bound on the step of any plan, in seconds: the best of the threads' bounds and their pairwise mixtures."""
    if problem.alone:
        return min(lower_bound_s(one, mixtures) for one in (replace(problem, alone=()), problem.plain))
    return problem.forward_s + float(cuts(problem, mixtures).rest_s[:, 0].max())


def cuts(problem: CompressionProblem, mixtures: int = 7) -> Cuts:
    """Each thread's bound, and mixtures of the compute thread's bound with the others'."""
    computing, others = _bounds(problem)
    mixed = [(1.0, one, one) for one in (*computing, *others)]
    parts = (np.arange(1, mixtures + 1) / (mixtures + 1)).tolist()
    mixed += [(part, one, other) for one in computing for other in others for part in parts]
    share, rest, sums = (
        np.zeros((len(mixed), 6)),
        np.zeros((len(mixed), len(problem.elements) + 1)),
        _Sums(problem),
    )
    for row, (part, one, other) in enumerate(mixed):
        for bound, weight in ((one, part), (other, 1.0 - part)):
            share[row, list(bound.places)] += weight
        pairs = ((one.each, other.each), (one.first, other.first), (one.last, other.last))
        weights = [part * np.array(a) + (1.0 - part) * np.array(b) for a, b in pairs]
        rest[row] = part * one.fixed_s + (1.0 - part) * other.fixed_s + sums.least(*weights)
    rest[:, -1] = 0.0
    return Cuts(share, rest)


def _bounds(problem: CompressionProblem) -> tuple[list[_Bound], list[_Bound]]:
    """Bounds of the computing thread, and of the others."""
    rho, places = problem.encode_contention, {option.decode for option in problem.options}
    slow = 1.0 if rho is None else rho
    left = problem.ready_s[-1] - problem.ready_s
    gap, zero = np.append(problem.gaps_s, 0.0), np.zeros_like(left)
    computing = [_Bound((COMPUTED,), left, (slow, 0, 0, 0, 0), last=(0, 1, 1, 1, 1))]
    others = [
        _Bound((SENT,), zero, (0, 1, 1, 0, 0), last=(0, 0, 0, 1, 1)),
        _Bound((COMPUTED,), gap, (0, 1, 1, 0, 0), first=(1, 0, 0, 0, 0), last=(0, 0, 0, 1, 1)),
    ]
    if "lazy" in places:
        computing.append(_Bound((COMPUTED, LAZY_WORK), left, (slow, 0, 0, 1, 0)))
        others.append(_Bound((LAZY,), zero, (0, 0, 0, 1, 0)))
    if "queue" in places:
        others.append(_Bound((QUEUE,), zero, (0, 0, 0, 0, 1)))
        others.append(_Bound((COMPUTED,), gap, (0, 0, 0, 0, 1), first=(1, 1, 0, 0, 0)))
    if rho is not None:
        others.append(_Bound((ENCODED,), zero, (1, 0, 0, 0, 0), last=(0, 1, 1, 1, 1)))
        others.append(_Bound((COMPUTED,), gap, (1, 0, 0, 0, 0), last=(0, 1, 1, 1, 1)))
    return computing, others


class _Sums:
    """Least sums of weighted seconds over the groups of the last tensors."""

    def __init__(self, problem: CompressionProblem) -> None:
        whole, curves = float(problem.element_sums[-1]), []
        for o in problem.options:
            curves.append((o.encode_s, o.communicate_s, o.decode_s))
        self.sizes = np.array(problem.elements, dtype=np.float64)
        self.rest = whole - problem.element_sums
        # Between neighbouring sizes of the grid all curves are straight.
        self.grid = np.array(
            sorted({x for parts in curves for part in parts for x, _ in part.vertices(whole)})
        )
        self.place = [2 + DECODES.index(option.decode) for option in problem.options]
        self.at_grid, self.at_sizes, self.at_rest = (
            np.array([[part(at) for part in parts] for parts in curves])
            for at in (self.grid, self.sizes, self.rest)
        )

    def least(self, each: Vector, first: Vector, last: Vector) -> Vector:
        """Least weight from tensor j on, [tensors + 1], if each group adds its weights, the first and last one more."""
        two = np.full(len(self.rest), -np.inf)
        for slope in _slopes(self.grid, self._by_option(each, self.at_grid).min(axis=0)):
            ends = self._ahead(each + first, slope), self._ahead(each + last, slope)[-1]
            two[:-1] = np.maximum(two[:-1], slope * self.rest[:-1] + ends[0] + ends[1])
        one = self._by_option(each + first + last, self.at_rest).min(axis=0)
        # The last tensor alone is one group.
        two[-2:] = one[-2:]
        found = np.minimum(one, two)
        found[-1] = 0.0
        return found

    def _by_option(self, weights: Vector, seconds: Vector) -> Vector:
        """Weighted seconds, [options, sizes]."""
        used = np.array([[weights[0], weights[1], weights[place]] for place in self.place])
        return np.einsum("op,ops->os", used, seconds)

    def _ahead(self, weights: Vector, slope: float) -> Vector:
        """Least seconds above slope * x of a group with tensor j and others, [tensors]."""
        above = (self._by_option(weights, self.at_grid) - slope * self.grid).min(axis=0)
        larger = np.append(np.minimum.accumulate(above[::-1])[::-1], np.inf)
        alone = (self._by_option(weights, self.at_sizes) - slope * self.sizes).min(axis=0)
        return np.minimum(alone, larger[np.searchsorted(self.grid, self.sizes)])


def _slopes(sizes: Vector, values: Vector) -> Sequence[float]:
    """Slopes b with b x below all points: of edges of their lower hull, and of the line through 0 that touches it."""
    hull: list[tuple[float, float]] = []
    for point in zip(sizes.tolist(), values.tolist(), strict=True):
        while len(hull) > 1:
            (x, y), (far, high), (end, top) = hull[-2], hull[-1], point
            if (high - y) * (end - x) < (top - y) * (far - x):
                break
            hull.pop()
        hull.append(point)
    found = {0.0, min(y / x for x, y in hull if x > 0)}
    for (x, y), (far, high) in pairwise(hull):
        slope = (high - y) / (far - x)
        if slope > 0 and y - slope * x > 0:
            found.add(slope)
    return sorted(found)
