"""Optimal groups by label setting.

A label holds the times at which the threads finish the first j tensors under some choice of groups: (C, E, M, L, D,
Q) of `problem`. Any continuation ends no later if an entry decreases, so only Pareto-optimal labels of j are kept:
the exact optimum, for any cost curves. Labels that cannot beat the best plan so far (`cuts`) are pruned too. For n
tensors, o options and f labels a tensor: n^2 f o labels are made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wirewise.planners.arrays import Ints, Vector
from wirewise.planners.fusion.cupcake.cuts import COMPUTED, ENCODED, LAZY, LAZY_WORK, QUEUE, SENT, Cuts
from wirewise.planners.fusion.cupcake.problem import CompressionProblem, GradientGroup
from wirewise.plans.fusion import DECODES
from wirewise.sim.compiled import outer

__all__ = ["LabelSearch", "search"]


_INLINE, _LAZY, _QUEUE = 0, 1, 2
"""Places in `DECODES`."""


class LabelSearch(NamedTuple):
    """Result of a search."""

    groups: list[GradientGroup] | None
    """The best groups. None if no plan ends before the limit."""
    labels: int
    """Number of labels that were kept."""
    complete: bool
    """Whether no label was dropped to stay within `room`."""


class _Store:
    """All labels, those of a tensor next to each other."""

    def __init__(self) -> None:
        self.values, self.starts, self.count = np.zeros((1024, 6)), [0, 1], 1
        self.parent, self.option = np.full(1024, -1), np.full(1024, -1)

    def add(self, values: Vector, parent: Ints, option: Ints) -> None:
        while self.count + len(values) > len(self.values):
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
            self.parent = np.concatenate([self.parent, np.zeros_like(self.parent)])
            self.option = np.concatenate([self.option, np.zeros_like(self.option)])
        new = slice(self.count, self.count + len(values))
        self.values[new], self.parent[new], self.option[new] = values, parent, option
        self.count += len(values)
        self.starts.append(self.count)

    def groups(self, label: int) -> list[GradientGroup]:
        """The choices that led to a label."""
        found: list[GradientGroup] = []
        while label > 0:
            ends = np.searchsorted(self.starts, [self.parent[label], label], side="right") - 1
            found.append(GradientGroup(int(ends[0]), int(ends[1]) - 1, int(self.option[label])))
            label = int(self.parent[label])
        return found[::-1]


def search(problem: CompressionProblem, bounds: Cuts, limit_s: float, room: int) -> LabelSearch:
    """Find the plan that ends first, if it ends within `limit_s` after the forward pass.

    Args:
        problem: Gradients, codecs and links.
        bounds: Bounds of the problem.
        limit_s: Upper bound of the search, in seconds after the forward pass.
        room: Maximum number of labels per tensor; those with the lowest bounds are kept.
    """
    n, store, complete = len(problem.elements), _Store(), True
    where = np.array([DECODES.index(option.decode) for option in problem.options])
    share = -1.0 if problem.encode_contention is None else problem.encode_contention
    front, kept = (np.empty((room, 6)), np.empty(room)), np.empty((2, room), dtype=np.int64)
    for place in range(1, n + 1):
        # Seconds to encode, send and decode tensors i to place - 1, [options, 3, i].
        sizes = problem.element_sums[place] - problem.element_sums[:place]
        cost = np.array(
            [[o.encode_s(sizes), o.communicate_s(sizes), o.decode_s(sizes)] for o in problem.options]
        )
        _drop_beaten(cost, where)
        count, dropped = _extend(
            store.values, np.array(store.starts), problem.ready_s, cost, where, share,
            bounds.share, bounds.rest_s[:, place].copy(), limit_s, *front, *kept,
        )  # fmt: skip
        order = np.argsort(front[1][:count], kind="stable")
        store.add(front[0][order], kept[0][order], kept[1][order])
        complete = complete and not dropped
    if store.starts[n] == store.count:
        return LabelSearch(None, store.count, complete)
    return LabelSearch(store.groups(store.starts[n]), store.count, complete)


@outer
def _drop_beaten(cost: Vector, where: Ints) -> None:
    """Make sending take forever where another option of the same kind takes no longer in any part."""
    for i in range(cost.shape[2]):
        for one in range(len(where)):
            for other in range(len(where)):
                if one == other or where[one] != where[other] or cost[other, 1, i] == np.inf:
                    continue
                ends = cost[other, :, i] - cost[one, :, i]
                if ends.max() < 0 or (ends.max() == 0 and (ends.min() < 0 or other < one)):
                    cost[one, 1, i] = np.inf
                    break


@outer
def _extend(
    values: Vector, starts: Ints, ready: Vector, cost: Vector, where: Ints, contention: float,
    share: Vector, rest: Vector, limit: float, front: Vector, bound: Vector, parent: Ints, option: Ints,
) -> tuple[int, bool]:  # fmt: skip
    """Labels of the next tensor from those of all before it, into the last four arrays."""
    new, count, dropped, place = np.zeros(6), 0, False, len(starts) - 1
    for i in range(place - 1, -1, -1):
        gap = ready[place] - ready[i]
        for label in range(starts[i], starts[i + 1]):
            for choice in range(len(where)):
                if cost[choice, 1, i] == np.inf:
                    continue
                _step(new, values[label], gap, cost[choice, :, i], where[choice], contention)
                least = _bound(new, share, rest, limit)
                if least >= limit or _beaten(new, front, count):
                    continue
                count = _without_beaten(new, front, bound, parent, option, count)
                at = count
                if count == len(bound):
                    dropped = True
                    at = np.argmax(bound)
                    if bound[at] <= least:
                        continue
                else:
                    count += 1
                front[at], bound[at], parent[at], option[at] = new, least, label, choice
    return count, dropped


@outer
def _step(new: Vector, old: Vector, gap: float, cost: Vector, where: int, contention: float) -> None:
    """The label behind one more group; see `problem`."""
    h, g, d = cost[0], cost[1], cost[2]
    start = old[COMPUTED] + gap
    new[:] = old
    if contention < 0:
        new[COMPUTED] = new[ENCODED] = start + h
    else:
        new[COMPUTED], new[ENCODED] = start + contention * h, max(old[ENCODED], start) + h
    new[SENT] = max(old[SENT], new[ENCODED]) + g
    if where == _INLINE:
        new[SENT] += d
    elif where == _LAZY:
        new[LAZY], new[LAZY_WORK] = max(old[LAZY], new[SENT]) + d, old[LAZY_WORK] + d
    elif where == _QUEUE:
        new[QUEUE] = max(old[QUEUE], new[SENT]) + d


@outer
def _bound(new: Vector, share: Vector, rest: Vector, limit: float) -> float:
    """The largest cut; at least `limit` as soon as one is."""
    most = 0.0
    for r in range(len(rest)):
        own = rest[r]
        for p in range(6):
            own += share[r, p] * new[p]
        if own > most:
            most = own
            if most >= limit:
                break
    return most


@outer
def _beaten(new: Vector, front: Vector, count: int) -> bool:
    for f in range(count):
        better = True
        for p in range(6):
            if front[f, p] > new[p]:
                better = False
                break
        if better:
            return True
    return False


@outer
def _without_beaten(new: Vector, front: Vector, bound: Vector, parent: Ints, option: Ints, count: int) -> int:
    kept = 0
    for f in range(count):
        better = True
        for p in range(6):
            if new[p] > front[f, p]:
                better = False
                break
        if not better:
            if kept < f:
                front[kept], bound[kept] = front[f], bound[f]
                parent[kept], option[kept] = parent[f], option[f]
            kept += 1
    return kept
