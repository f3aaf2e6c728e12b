"""Compiled core of the simulator: runs a graph of ops on resources and on shared interfaces.

An op is ready when all its predecessors have ended. If it needs a resource, it starts when a slot is free, the ready
ops of a resource in order of (priority, ready time, number); the slot is blocked for a gap after it. An op without
bytes lasts its duration. A transfer lasts its duration, which is its latency, and then until its bytes are sent: its
bandwidth follows from max-min sharing (`sharing`) and changes whenever another transfer starts or ends. Events are
processed by (time, priority, ready time, number), those of running transfers before all others of the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.sim.heap import Heap, new_heap, pop, schedule
from wirewise.sim.sharing import NONE, InterfaceUse, Shares, fair_rates, join, leave, new_shares
from wirewise.sim.waiting import Items, new_items, wait
from wirewise.sim.waiting import leave as leave_queue

__all__ = ["Ops", "Run", "run"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

_QUEUES, _LATENCY, _FLOWS = 1, 2, 3
_URGENT = -(2**63)


class Ops(NamedTuple):
    """Graph of n ops over R resources."""

    duration: Vector
    """Seconds of each op; for a transfer, before its bytes flow, [n]."""
    gap: Vector
    """Seconds that the slot stays closed afterwards, [n]."""
    release: Vector
    """Time before which the op does not start, [n]."""
    work: Vector
    """Bytes of the largest flow of each op, 0 if it is no transfer, [n]."""
    resource: Ints
    """Number of the resource or -1, [n]."""
    priority: Ints
    """Priority of each op, the smallest first, [n]."""
    indptr: Ints
    """First successor of each op in `successors`, [n + 1]."""
    successors: Ints
    slots: Ints
    """Number of ops that a resource runs at once, at least 1, [R]."""


class Run(NamedTuple):
    """Result of a simulated run."""

    start: Vector
    """Start of each op in seconds, NaN if the op never ran, [n]."""
    end: Vector
    cause: Ints
    """Op whose end (with its gap) made the start possible, or -1, [n]."""
    earlier: Ints
    """Op that occupied the slot before, or -1, [n]."""
    order: Ints
    """Ops in the order of their starts, -1 for each that never ran, [n]."""


class _State(NamedTuple):
    heap: Heap
    shares: Shares
    stage: Ints
    pending: Ints
    """Predecessors that have not ended, [n]."""
    slot_of: Ints
    """Slot that an op holds, [n]."""
    slot_start: Ints
    """First slot of each resource, [R + 1]."""
    slot_free: Vector
    """When each slot opens; infinite: not known yet, [slots]."""
    slot_last: Ints
    """Last op of each slot or -1, [slots]."""
    queues: Items
    """Ready ops that found no slot, by resource."""
    remaining: Vector
    """Bytes of the largest flow that are left at time `since`, [n]."""
    since: Vector
    speed: Vector
    """Bytes of the largest flow a second since `since`; -1: not known yet, [n]."""
    dirty: Ints
    """Interfaces whose transfers changed, [K]."""
    is_dirty: Ints
    """Whether an interface is listed in `dirty`, [K]."""
    counts: Ints
    """Length of `dirty`, last stamp, ops that started, [3]."""


@outer
def run(ops: Ops, uses: InterfaceUse) -> Run:
    """Simulate a graph.

    Args:
        ops: Graph; arrays are not checked (`links.network` and `replay` make them).
        uses: Interface use of transfers; a transfer without uses ends after its latency.

    Returns:
        Times of all ops; NaN for ops on a cycle.
    """
    n = len(ops.duration)
    out = Run(
        np.full(n, np.nan), np.full(n, np.nan), np.full(n, NONE, np.int64), np.full(n, NONE, np.int64),
        np.full(n, NONE, np.int64),
    )  # fmt: skip
    ready = ops.release.copy()
    state = _new_state(ops, uses, ready)
    for op in range(n):
        if state.pending[op] == 0:
            schedule(state.heap, op, ready[op])
    now = -np.inf
    while state.heap.size[0] > 0 or state.counts[0] > 0:
        if state.counts[0] > 0 and (state.heap.size[0] == 0 or state.heap.time[0] > now):
            _share(now, uses, state)
            continue
        now = state.heap.time[0]
        op = pop(state.heap)
        if state.stage[op] == _FLOWS:
            _touch(op, uses, state)
            leave(op, uses, state.shares)
            _finish(op, now, now, ops, out, state)
        elif state.stage[op] == _LATENCY:
            _flow(op, now, uses, state)
        else:
            _try(op, now, ops, uses, out, state)
    return out


@outer
def _new_state(ops: Ops, uses: InterfaceUse, ready: Vector) -> _State:
    n, resources, interfaces = len(ops.duration), len(ops.slots), len(uses.capacity)
    pending = np.zeros(n, np.int64)
    for op in ops.successors:
        pending[op] += 1
    slot_start = np.zeros(resources + 1, np.int64)
    for r in range(resources):
        slot_start[r + 1] = slot_start[r] + ops.slots[r]
    return _State(
        new_heap(ops.priority.copy(), ready),
        new_shares(n, len(uses.owner), interfaces),
        np.zeros(n, np.int64),
        pending,
        np.full(n, NONE, np.int64),
        slot_start,
        np.full(slot_start[-1], -np.inf),
        np.full(slot_start[-1], NONE, np.int64),
        new_items(n, resources),
        ops.work.copy(),
        np.zeros(n),
        np.full(n, -1.0),
        np.empty(interfaces, np.int64),
        np.zeros(interfaces, np.int64),
        np.zeros(3, np.int64),
    )


@inner
def _try(op: int, now: float, ops: Ops, uses: InterfaceUse, out: Run, state: _State) -> None:
    """Start an op that is ready where a slot is free, else let it queue."""
    r = ops.resource[op]
    if r >= 0:
        slot = _first_slot(r, state)
        free, last, ready = state.slot_free[slot], state.slot_last[slot], state.heap.ready[op]
        if free > now:
            if state.stage[op] != _QUEUES:
                state.stage[op] = _QUEUES
                wait(state.queues, state.heap, op, r)
            _wake(r, now, state)
            return
        if state.stage[op] == _QUEUES:
            # Only the first of a queue can find a slot: all others come after it in the heap of events.
            leave_queue(state.queues, state.heap, r)
        if last != NONE and (now > ready or (out.cause[op] == NONE and free == now)):
            out.cause[op] = last
        out.earlier[op] = last
        state.slot_of[op] = slot
        state.slot_last[slot], state.slot_free[slot] = op, np.inf
    out.start[op] = now
    out.order[state.counts[2]] = op
    state.counts[2] += 1
    if ops.work[op] <= 0.0 or uses.indptr[op] == uses.indptr[op + 1]:
        _finish(op, now + ops.duration[op], now, ops, out, state)
        return
    state.stage[op] = _LATENCY
    state.heap.rank[op] = _URGENT
    schedule(state.heap, op, now + ops.duration[op])
    if r >= 0:
        # Its end is not known yet; the next in the queue may find another slot.
        _wake(r, now, state)


@inner
def _first_slot(r: int, state: _State) -> int:
    """The slot of a resource that opens first."""
    best = state.slot_start[r]
    for slot in range(best + 1, state.slot_start[r + 1]):
        if state.slot_free[slot] < state.slot_free[best]:
            best = slot
    return best


@inner
def _wake(r: int, now: float, state: _State) -> None:
    """Let the first of a queue try again when a slot opens, if that is known."""
    if state.queues.top[r] >= 0:
        free = state.slot_free[_first_slot(r, state)]
        if free < np.inf:
            schedule(state.heap, state.queues.top[r], max(free, now))


@inner
def _finish(op: int, end: float, now: float, ops: Ops, out: Run, state: _State) -> None:
    """Fix the end of an op (now or later): open its slot and tell its successors."""
    out.end[op] = end
    r = ops.resource[op]
    if r >= 0:
        state.slot_free[state.slot_of[op]] = end + ops.gap[op]
        _wake(r, now, state)
    ready = state.heap.ready
    for position in range(ops.indptr[op], ops.indptr[op + 1]):
        follower = ops.successors[position]
        if end > ready[follower] or (end == ready[follower] and out.cause[follower] == NONE):
            ready[follower], out.cause[follower] = end, op
        state.pending[follower] -= 1
        if state.pending[follower] == 0:
            schedule(state.heap, follower, ready[follower])


@inner
def _flow(op: int, now: float, uses: InterfaceUse, state: _State) -> None:
    """The latency of a transfer is over: its bytes begin to flow."""
    state.stage[op] = _FLOWS
    state.since[op] = now
    join(op, uses, state.shares)
    _touch(op, uses, state)


@inner
def _touch(op: int, uses: InterfaceUse, state: _State) -> None:
    """Note that the shares of a transfer's interfaces change."""
    for use in range(uses.indptr[op], uses.indptr[op + 1]):
        k = uses.interface[use]
        if state.is_dirty[k] == 0:
            state.is_dirty[k] = 1
            state.dirty[state.counts[0]] = k
            state.counts[0] += 1


@inner
def _share(now: float, uses: InterfaceUse, state: _State) -> None:
    """New speeds and ends of the transfers that the changes at this time touch."""
    before = state.counts[1]
    for position in range(state.counts[0]):
        k = state.dirty[position]
        state.is_dirty[k] = 0
        if state.shares.seen[k] > before or state.shares.head[k] == NONE:
            continue
        state.counts[1] += 1
        for member in range(fair_rates(k, uses, state.shares, state.counts[1])):
            op = state.shares.members[member]
            speed = state.shares.fair[op]
            if speed != state.speed[op]:
                passed = max(state.speed[op], 0.0) * (now - state.since[op])
                state.remaining[op] = max(state.remaining[op] - passed, 0.0)
                state.since[op], state.speed[op] = now, speed
                schedule(state.heap, op, now + state.remaining[op] / speed)
    state.counts[0] = 0
