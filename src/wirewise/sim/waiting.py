"""Wait queues of ops for resource slots and of messages for edges: one heap for each, in shared arrays.

An item waits at one place at most, so two links per item suffice for all heaps. They are skew heaps (Sleator, Tarjan,
"Self-adjusting heaps", 1986): removing the first item merges its two children, and adding one merges with a
single-item heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.sim.heap import Heap, precedes

__all__ = ["Items", "leave", "new_items", "wait"]

Ints = NDArray[np.int64]


class Items(NamedTuple):
    """Heaps of waiting items, one per place."""

    low: Ints
    """Children of each item in the heap of its place, or -1, [items]."""
    high: Ints
    waits_at: Ints
    """Place at which an item waits, or -1, [items]."""
    top: Ints
    """First item that waits at each place, or -1, [places]."""


@outer
def new_items(items: int, num_places: int) -> Items:
    """Create empty heaps."""
    return Items(
        np.full(items, -1, np.int64),
        np.full(items, -1, np.int64),
        np.full(items, -1, np.int64),
        np.full(num_places, -1, np.int64),
    )


@inner
def _merge(items: Items, order: Heap, a: int, b: int) -> int:
    """One heap of two; the first item."""
    if a < 0 or b < 0:
        return max(a, b)
    if precedes(order, b, a):
        a, b = b, a
    first = a
    while True:
        # Children change sides all the way down. Without any record of depth, this alone keeps the mean cost of a
        # merge logarithmic: a long right path has become a left one when it is next met.
        other = items.high[a]
        items.high[a] = items.low[a]
        if other < 0:
            items.low[a] = b
            return first
        # From here on `a` is before both: the lesser of the two becomes its child, and the other sinks on.
        if precedes(order, other, b):
            other, b = b, other
        items.low[a] = b
        a, b = b, other


@inner
def wait(items: Items, order: Heap, item: int, place: int) -> None:
    """Add an item to the heap of a place, sorted by `order`."""
    items.waits_at[item], items.low[item], items.high[item] = place, -1, -1
    items.top[place] = _merge(items, order, items.top[place], item)


@inner
def leave(items: Items, order: Heap, place: int) -> None:
    """Remove and return the first item waiting at a place."""
    item = items.top[place]
    items.waits_at[item] = -1
    items.top[place] = _merge(items, order, items.low[item], items.high[item])
