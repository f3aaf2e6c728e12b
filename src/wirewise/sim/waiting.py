"""Items that wait at the edges of a network: a heap of item numbers for each edge, in arrays that all of them share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner

__all__ = ["Items", "leave", "new_items", "wait"]

Ints = NDArray[np.int64]


class Items(NamedTuple):
    """For each edge, the items that wait there in a heap by their numbers; an item waits at one edge at most."""

    low: Ints
    """Children in an edge's heap, or -1, [items]."""
    high: Ints
    waits_at: Ints
    """Edge at which an item waits, or -1, [items]."""
    top: Ints
    """First item that waits at each edge, or -1, [edges]."""


def new_items(items: int, edges: int) -> Items:
    """No item waits."""
    return Items(
        low=np.full(items, -1, np.int64),
        high=np.full(items, -1, np.int64),
        waits_at=np.full(items, -1, np.int64),
        top=np.full(edges, -1, np.int64),
    )


@inner
def _merge(items: Items, a: int, b: int) -> int:
    """One skew heap of two (Sleator, Tarjan 1986); the first item."""
    if a < 0 or b < 0:
        return max(a, b)
    if b < a:
        a, b = b, a
    first = a
    while True:
        other = items.high[a]
        items.high[a] = items.low[a]
        if other < 0:
            items.low[a] = b
            return first
        if other < b:
            other, b = b, other
        items.low[a] = b
        a, b = b, other


@inner
def wait(items: Items, item: int, edge: int) -> None:
    """Let an item wait at an edge."""
    items.waits_at[item], items.low[item], items.high[item] = edge, -1, -1
    items.top[edge] = _merge(items, items.top[edge], item)


@inner
def leave(items: Items, edge: int) -> None:
    """The first item that waits at an edge waits there no more."""
    item = items.top[edge]
    items.waits_at[item] = -1
    items.top[edge] = _merge(items, items.low[item], items.high[item])
