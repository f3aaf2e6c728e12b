"""Heaps of the message simulator: events by time, items that may start, and items that wait at each edge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner

__all__ = [
    "Events",
    "Items",
    "leave",
    "new_events",
    "new_items",
    "pop_event",
    "pop_starter",
    "push_event",
    "push_starter",
    "wait",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Events(NamedTuple):
    """Heap by (time, code)."""

    time: Floats
    code: Ints
    size: Ints
    """[1]"""


class Items(NamedTuple):
    """Items in order of their numbers: those that may start now in a heap, those that wait in one for each edge."""

    low: Ints
    """Children in an edge's heap, or -1, [items]."""
    high: Ints
    waits_at: Ints
    """Edge at which an item waits, or -1, [items]."""
    top: Ints
    """First item that waits at each edge, or -1, [edges]."""
    may_start: Ints
    starters: Ints
    """How many may start, [1]."""


def new_events(capacity: int) -> Events:
    """No events."""
    return Events(np.empty(capacity), np.empty(capacity, np.int64), np.zeros(1, np.int64))


def new_items(items: int, edges: int) -> Items:
    """None may start, none waits."""
    return Items(
        low=np.full(items, -1, np.int64),
        high=np.full(items, -1, np.int64),
        waits_at=np.full(items, -1, np.int64),
        top=np.full(edges, -1, np.int64),
        may_start=np.empty(items + edges, np.int64),
        starters=np.zeros(1, np.int64),
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
def _earlier(events: Events, place: int, time: float, code: int) -> bool:
    return events.time[place] < time or (events.time[place] == time and events.code[place] < code)


@inner
def push_event(events: Events, time: float, code: int) -> None:
    """Add an event."""
    place = events.size[0]
    events.size[0] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if _earlier(events, parent, time, code):
            break
        events.time[place], events.code[place] = events.time[parent], events.code[parent]
        place = parent
    events.time[place], events.code[place] = time, code


@inner
def pop_event(events: Events) -> int:
    """Take the first event out; its code."""
    first = events.code[0]
    events.size[0] -= 1
    size = events.size[0]
    time, code = events.time[size], events.code[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _earlier(events, child + 1, events.time[child], events.code[child]):
            child += 1
        if not _earlier(events, child, time, code):
            break
        events.time[place], events.code[place] = events.time[child], events.code[child]
        place = child
    events.time[place], events.code[place] = time, code
    return first


@inner
def push_starter(items: Items, item: int) -> None:
    """Let an item start."""
    place = items.starters[0]
    items.starters[0] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if item >= items.may_start[parent]:
            break
        items.may_start[place] = items.may_start[parent]
        place = parent
    items.may_start[place] = item


@inner
def pop_starter(items: Items) -> int:
    """Take the first item that may start out."""
    first = items.may_start[0]
    items.starters[0] -= 1
    size = items.starters[0]
    item, place = items.may_start[size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and items.may_start[child + 1] < items.may_start[child]:
            child += 1
        if items.may_start[child] >= item:
            break
        items.may_start[place] = items.may_start[child]
        place = child
    items.may_start[place] = item
    return first


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
