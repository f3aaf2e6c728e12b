"""Optimal groups if everything is decoded inline: two-entry labels, extended from both sides.

Forward, a label is (C, M) of `problem`: one more group makes C' = C + B + h and M' = max(M, C') + g, with d in g.
Backward, it is what follows: b, the least time from M to the end, and a, from C to the end, so that the step is
A + max(C + a, M + b). One more group in front makes b' = b + g and a' = max(a, b') + B + h: the same with exchanged
roles, as for two machines in a row. So one routine walks in both directions.

A walk keeps a limited number of labels per tensor and replaces the others by better, possibly infeasible ones: its
result is a lower bound on all plans, and its choices are a plan. The next walk, from the other side, prunes all
labels that, by the labels of this one, cannot lead below the best plan, and so has more room for the rest. If nothing
is left, or nothing was replaced, the best plan is proved optimal. Between the first walks, short walks that keep only
feasible labels look for better plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wirewise.planners.arrays import Ints, Vector
from wirewise.planners.fusion.cupcake.problem import CompressionProblem, GradientGroup, step_s
from wirewise.planners.fusion.cupcake.stairs import extend

__all__ = ["WalkResult", "applies", "plane"]


_NOTHING = np.empty(0)
_PROBES, _PROBE = 4, 32
"""Walks that a short one goes before, and its labels a tensor."""


class WalkResult(NamedTuple):
    """Best plan and lower bound of the walks."""

    groups: list[GradientGroup]
    bound_s: float
    """Lower bound of the step, in seconds."""
    labels: int
    """Number of labels that were kept in all walks."""


class _Labels(NamedTuple):
    """Labels of a walk, those of a place next to each other."""

    u: Vector
    v: Vector
    code: Ints
    starts: Ints
    thinned: bool

    def at(self, place: int) -> tuple[Vector, Vector]:
        own = slice(self.starts[place], self.starts[place + 1])
        return self.u[own], self.v[own]

    def best(self) -> int:
        """The last place's label that ends first; below 0: there is none."""
        u, v = self.at(len(self.starts) - 2)
        return int(self.starts[-2] + np.maximum(u, v).argmin()) if len(u) else -1

    def end_s(self, label: int) -> float:
        return float(max(self.u[label], self.v[label]))

    def chosen(self, label: int, options: int) -> Iterator[tuple[int, int, int]]:
        """Places before and behind each group, last first, and its option."""
        while label > 0:
            parent, option = divmod(int(self.code[label]), options)
            ends = np.searchsorted(self.starts, [parent, label], side="right") - 1
            yield int(ends[0]), int(ends[1]), option
            label = parent


def applies(problem: CompressionProblem) -> bool:
    """Whether two-entry labels suffice: everything is decoded inline and encoded on the compute thread."""
    return problem.encode_contention is None and {option.decode for option in problem.options} == {"inline"}


def plane(
    problem: CompressionProblem, best: list[GradientGroup], close: float, rooms: Sequence[int]
) -> WalkResult:
    """Walk in both directions until the best plan is proved optimal.

    Args:
        problem: Problem to which this `applies`.
        best: Plan to begin with.
        close: Relative gain below which no better plan is sought.
        rooms: Labels per tensor of the walks, two walks each; the last ones may leave the best plan unproved.
    """
    walks, labels, bound = _Walks(problem), 0, problem.forward_s
    found: _Labels | None = None
    for number, room in enumerate(np.repeat(rooms, 2).tolist()):
        backward = number % 2 == 1
        for probe in (True, False) if 0 < number < _PROBES else (False,):
            limit = step_s(problem, best) * (1 - close)
            if limit <= bound:
                return WalkResult(best, limit, labels)
            walked = walks.walk(backward, found, (bound, limit), _PROBE if probe else room, real=probe)
            labels, last = labels + len(walked.u), walked.best()
            if last >= 0:
                best = min(best, walks.groups(walked, last, backward), key=lambda some: step_s(problem, some))
        if last < 0:
            return WalkResult(best, limit, labels)
        found, bound = walked, max(bound, min(problem.forward_s + walked.end_s(last), limit))
        if not found.thinned:
            break
    return WalkResult(best, bound, labels)


class _Walks:
    """State that all walks through a problem share."""

    def __init__(self, problem: CompressionProblem) -> None:
        self.forward_s, self.knots = problem.forward_s, _knots(problem)
        ready, sums = problem.ready_s, problem.element_sums
        self.ways = (ready, sums), ((ready[-1] - ready)[::-1].copy(), (sums[-1] - sums)[::-1].copy())

    def walk(
        self, backward: bool, other: _Labels | None, ends_s: tuple[float, float], room: int, *, real: bool
    ) -> _Labels:
        """Labels of all places, from the first tensor or from the last one on, between two ends of the step."""
        way, (bound, limit) = self.ways[backward], (end - self.forward_s for end in ends_s)
        n = len(way[0]) - 1
        u, v, code = np.zeros(1 + n * room), np.zeros(1 + n * room), np.full(1 + n * room, -1)
        starts, thinned = np.array([0, *[1] * (n + 1)]), False
        for place in range(1, n + 1):
            follows = (_NOTHING, _NOTHING) if other is None else other.at(n - place)
            starts[place + 1] = starts[place]
            if other is not None and not len(follows[0]):
                continue
            *new, more = extend(
                place, u, v, starts, *way, self.knots, backward, *follows, bound, limit, room, real
            )
            own = slice(int(starts[place]), int(starts[place]) + len(new[0]))
            u[own], v[own], code[own] = new
            starts[place + 1], thinned = own.stop, thinned or more
        end = int(starts[-1])
        return _Labels(u[:end], v[:end], code[:end], starts, thinned)

    def groups(self, labels: _Labels, last: int, backward: bool) -> list[GradientGroup]:
        """The choices that led to a label."""
        n, chosen = len(labels.starts) - 2, list(labels.chosen(last, len(self.knots)))
        if backward:
            return [GradientGroup(n - end, n - begin - 1, option) for begin, end, option in chosen]
        return [GradientGroup(begin, end - 1, option) for begin, end, option in reversed(chosen)]


def _knots(problem: CompressionProblem) -> Vector:
    """Size, seconds and slope at the knots of each option's two parts, [options, 2, 3, knots]."""
    whole = float(problem.element_sums[-1])
    parts = [(o.encode_s, o.communicate_s + o.decode_s) for o in problem.options]
    points = [[np.array(curve.vertices(whole)).T for curve in both] for both in parts]
    found = np.zeros((len(parts), 2, 3, max(at.shape[1] for both in points for at in both)))
    found[:, :, 0] = np.inf
    for option, both in enumerate(points):
        for part, (size, seconds) in enumerate(both):
            slopes = np.diff(seconds) / np.diff(size)
            found[option, part, :, : len(size)] = size, seconds, [*slopes, slopes[-1]]
    return found
