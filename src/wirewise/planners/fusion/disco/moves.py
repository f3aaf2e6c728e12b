"""Random changes of a state, as tried by the search.

Operators are fused over an edge: into one region that serves all readers, or by a copy in the reader's region, so
that the others do not wait. All-reduces are fused with a neighbour. Beyond DisCo, all gradients are regrouped by
Cupcake's dynamic programme for their ready order; regions are split, because the search starts from fused ones; and
changes of all kinds are combined, because a single one may exceed the acceptance limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from wirewise.planners.fusion.cupcake.linear import Lines, spans
from wirewise.planners.fusion.disco.edges import COPY, CUT, FUSE, changed
from wirewise.planners.fusion.disco.model import State, StepModel

__all__ = ["METHODS", "all_reduces", "group_buckets", "operators"]

Random = np.random.Generator


def operators(model: StepModel, state: State, kinds: Sequence[int], random: Random) -> State:
    """Change regions at random places, with the kinds of changes in `edges`."""
    return model.fused(state, changed(model.arrays, state.fusion, np.array(kinds, dtype=np.int64), random))


def all_reduces(model: StepModel, state: State, count: int, random: Random) -> State:
    """Fuse `count` random all-reduces, each with a neighbour.

    Neighbours are all-reduces of gradients adjacent in ready order, or with one computed from the other.
    """
    groups = model.buckets(state)
    for _ in range(min(count, len(groups) - 1)):
        own = int(random.integers(len(groups)))
        others = {other for gradient in groups[own] for other in model.related[gradient]}
        related = {place for place, group in enumerate(groups) if not others.isdisjoint(group)}
        near = {own - 1, own + 1, *related} - {own, -1, len(groups)}
        other = sorted(near)[int(random.integers(len(near)))]
        early, late = min(own, other), max(own, other)
        # It is ready when the later one was.
        groups[late] = groups[early] + groups[late]
        del groups[early]
    return model.with_buckets(state, groups)


def group_buckets(model: StepModel, state: State) -> State:
    """Choose the buckets that end first for the gradients' ready times (Cupcake's dynamic programme).

    With an overlap rate below 1 they may be suboptimal.
    """
    order = np.argsort(state.ready_s, kind="stable")
    ready, sums = np.zeros(len(order) + 1), np.zeros(len(order) + 1)
    ready[1:], sums[1:] = state.ready_s[order], model.arrays.size_bytes[order].cumsum()
    wire = (model.all_reduce.latency_s, model.all_reduce.s_per_byte)
    found = spans(ready, sums, Lines((0.0, 0.0), wire))
    return model.with_buckets(state, [order[first:end].tolist() for first, end in found])


def _of_kind(kind: int, model: StepModel, state: State, count: int, random: Random) -> State:
    return operators(model, state, [kind] * count, random)


def _grouped(model: StepModel, state: State, count: int, random: Random) -> State:
    return group_buckets(model, state) if count else state


_KINDS = (FUSE, COPY, None, CUT)
"""Kinds of moves; None if an all-reduce is fused."""


def _mixed(model: StepModel, state: State, count: int, random: Random) -> State:
    """A number of changes of any kind, one after the other; those of regions in a row need no times in between."""
    drawn = [_KINDS[kind] for kind in random.integers(len(_KINDS), size=count).tolist()]
    for _, run in groupby(drawn, lambda kind: kind is None):
        own = list(run)
        kinds = [kind for kind in own if kind is not None]
        state = (
            operators(model, state, kinds, random) if kinds else all_reduces(model, state, len(own), random)
        )
    return group_buckets(model, state) if count and random.random() < 0.5 else state


METHODS: dict[str, Callable[[StepModel, State, int, Random], State]] = {
    "fuse": partial(_of_kind, FUSE),
    "duplicate": partial(_of_kind, COPY),
    "all_reduce": all_reduces,
    "cupcake": _grouped,
    "split": partial(_of_kind, CUT),
    "mixed": _mixed,
}
"""Moves by name: functions that return the state after a number of random changes."""
