"""Ops that wait for a slot of their resource, first by priority: a binary heap for each resource, in arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.sim.heap import Heap, goes_before

__all__ = ["Queues", "new_queues", "pop", "push"]

Ints = NDArray[np.int64]


class Queues(NamedTuple):
    """One queue for each of R resources."""

    op: Ints
    """Waiting ops: the queue of resource r begins at place first[r], [n]."""
    first: Ints
    """[R + 1]"""
    size: Ints
    """How many wait, [R]."""


@outer
def new_queues(resource: Ints, resources: int) -> Queues:
    """Empty queues, with room for all ops of each resource (-1: none)."""
    first = np.zeros(resources + 1, np.int64)
    for r in resource:
        if r >= 0:
            first[r + 1] += 1
    for r in range(resources):
        first[r + 1] += first[r]
    return Queues(np.empty(first[-1], np.int64), first, np.zeros(resources, np.int64))


@inner
def push(queues: Queues, r: int, op: int, order: Heap) -> None:
    """Let an op wait for resource r."""
    first, place = queues.first[r], queues.size[r]
    queues.size[r] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not goes_before(order, op, queues.op[first + parent]):
            break
        queues.op[first + place] = queues.op[first + parent]
        place = parent
    queues.op[first + place] = op


@inner
def pop(queues: Queues, r: int, order: Heap) -> None:
    """Take the first op of resource r out."""
    queues.size[r] -= 1
    first, size = queues.first[r], queues.size[r]
    op, place = queues.op[first + size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and goes_before(order, queues.op[first + child + 1], queues.op[first + child]):
            child += 1
        if not goes_before(order, queues.op[first + child], op):
            break
        queues.op[first + place] = queues.op[first + child]
        place = child
    queues.op[first + place] = op
