"""Changes of a state, at random places, as the search tries them.

Operators are fused over an edge: into one region that serves all readers, or by a copy in the reader's region, so
that the others do not wait. All-reduces are fused with a neighbour. Beside these, DisCo's, all gradients are grouped
anew by Cupcake's exact programme for the order in which they are ready; regions are cut in two, because the search
starts from what is fused already; and changes of all kinds are made together, because one alone may take longer than
what is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from wirewise.planners.fusion.cupcake.linear import Lines, spans
from wirewise.planners.fusion.disco.edges import COPY, CUT, FUSE, changed
from wirewise.planners.fusion.disco.model import State, StepModel

__all__ = ["METHODS", "all_reduces", "grouped", "operators"]

Random = np.random.Generator


def operators(model: StepModel, state: State, kinds: Sequence[int], random: Random) -> State:
    """The state after changes of its regions at random places, of the kinds of `edges`."""
    return model.fused(state, changed(model.arrays, state.fusion, np.array(kinds, dtype=np.int64), random))


def all_reduces(model: StepModel, state: State, count: int, random: Random) -> State:
    """The state after so many random all-reduces were each fused with a neighbour.

    Neighbours are those whose gradients are ready next to each other, and those of a gradient that is computed from
    the other one.
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
    return model.in_buckets(state, groups)


def grouped(model: StepModel, state: State) -> State:
    """The state with the buckets that end first, given when gradients are ready (Cupcake's dynamic programme).

    With an overlap rate below 1 others may end before them.
    """
    order = np.argsort(state.ready_s, kind="stable")
    ready, sums = np.zeros(len(order) + 1), np.zeros(len(order) + 1)
    ready[1:], sums[1:] = state.ready_s[order], model.arrays.size_bytes[order].cumsum()
    wire = (model.all_reduce.latency_s, model.all_reduce.s_per_byte)
    found = spans(ready, sums, Lines((0.0, 0.0), wire))
    return model.in_buckets(state, [order[first:end].tolist() for first, end in found])


def _of_kind(kind: int, model: StepModel, state: State, count: int, random: Random) -> State:
    return operators(model, state, [kind] * count, random)


def _grouped(model: StepModel, state: State, count: int, random: Random) -> State:
    return grouped(model, state) if count else state


_KINDS = (FUSE, COPY, None, CUT)
"""Kinds of moves; None: an all-reduce is fused."""


def _mixed(model: StepModel, state: State, count: int, random: Random) -> State:
    """A number of changes of any kind, one after the other; those of regions in a row need no times in between."""
    drawn = [_KINDS[kind] for kind in random.integers(len(_KINDS), size=count).tolist()]
    for _, run in groupby(drawn, lambda kind: kind is None):
        own = list(run)
        kinds = [kind for kind in own if kind is not None]
        state = (
            operators(model, state, kinds, random) if kinds else all_reduces(model, state, len(own), random)
        )
    return grouped(model, state) if count and random.random() < 0.5 else state


METHODS: dict[str, Callable[[StepModel, State, int, Random], State]] = {
    "fuse": partial(_of_kind, FUSE),
    "duplicate": partial(_of_kind, COPY),
    "all_reduce": all_reduces,
    "cupcake": _grouped,
    "split": partial(_of_kind, CUT),
    "mixed": _mixed,
}
"""Moves by name: each gives the state after so many changes."""
