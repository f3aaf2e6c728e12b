"""Binary heap of ops by the time of their next event, in arrays, for the simulator's compiled core.

An op has at most one event at a time, so the heap never outgrows the number of ops and an event can be moved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer

__all__ = ["Heap", "new_heap", "pop", "precedes", "schedule"]


class Heap(NamedTuple):
    """Events of n ops ordered by (time, rank): `rank` breaks ties, the least first."""

    time: NDArray[np.float64]
    """Time of each heap position, [n]."""
    op: NDArray[np.int64]
    """Op at each heap position, [n]."""
    place: NDArray[np.int64]
    """Heap position of each op, or -1, [n]."""
    rank: NDArray[np.int64]
    """Rank of an op among those with the same time; may change while the op has no event, [n]."""
    ready: NDArray[np.float64]
    """Ready time of each op, which breaks ties of `rank`; then the smaller index, [n]."""
    size: NDArray[np.int64]
    """Number of events, [1]."""


@outer
def new_heap(rank: NDArray[np.int64], ready: NDArray[np.float64]) -> Heap:
    """Make a heap without events."""
    n = len(rank)
    return Heap(
        np.empty(n), np.empty(n, np.int64), np.full(n, -1, np.int64), rank, ready, np.zeros(1, np.int64)
    )


@inner
def _before(heap: Heap, a_time: float, a: int, b_time: float, b: int) -> bool:
    return a_time < b_time if a_time != b_time else precedes(heap, a, b)


@inner
def precedes(heap: Heap, a: int, b: int) -> bool:
    """Whether op a precedes op b at equal times."""
    if heap.rank[a] != heap.rank[b]:
        return heap.rank[a] < heap.rank[b]
    if heap.ready[a] != heap.ready[b]:
        return heap.ready[a] < heap.ready[b]
    return a < b


@inner
def _put(heap: Heap, place: int, time: float, op: int) -> None:
    heap.time[place], heap.op[place], heap.place[op] = time, op, place


@inner
def _rise(heap: Heap, place: int, time: float, op: int) -> None:
    """Put an event at `place` or above."""
    while place > 0:
        parent = (place - 1) >> 1
        if not _before(heap, time, op, heap.time[parent], heap.op[parent]):
            break
        _put(heap, place, heap.time[parent], heap.op[parent])
        place = parent
    _put(heap, place, time, op)


@inner
def _sink(heap: Heap, place: int, time: float, op: int) -> None:
    """Put an event at `place` or below."""
    size = heap.size[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _before(heap, heap.time[other], heap.op[other], heap.time[child], heap.op[child]):
            child = other
        if not _before(heap, heap.time[child], heap.op[child], time, op):
            break
        _put(heap, place, heap.time[child], heap.op[child])
        place = child
    _put(heap, place, time, op)


@inner
def schedule(heap: Heap, op: int, time: float) -> None:
    """Insert an op's event, or move the existing one."""
    place = heap.place[op]
    if place < 0:
        place = heap.size[0]
        heap.size[0] += 1
        _rise(heap, place, time, op)
    elif time < heap.time[place]:
        _rise(heap, place, time, op)
    else:
        _sink(heap, place, time, op)


@inner
def pop(heap: Heap) -> int:
    """Remove the first event, and return its op."""
    first = heap.op[0]
    heap.place[first] = -1
    heap.size[0] -= 1
    size = heap.size[0]
    if size > 0:
        _sink(heap, 0, heap.time[size], heap.op[size])
    return first
