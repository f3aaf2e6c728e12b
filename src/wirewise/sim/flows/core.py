"""Compiled core: executions and flows of one placement, event by event.

Rates are constant until a flow becomes ready or ends, and do not depend on the future.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.sim.flows.graph import Graph
from wirewise.sim.flows.rates import FIFO, ITER, Network, Ready, set_rates
from wirewise.sim.heap import Heap, new_heap, pop, schedule

__all__ = ["FlowRun", "longest_path_s", "run"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

_SAME = 1e-12
"""Fraction of a step within which flows end together."""


class FlowRun(NamedTuple):
    """Result of a simulated run."""

    start_s: Vector
    """Time at which each op could start, [n]."""
    end_s: Vector
    """End of each op, [n]."""
    peak: int
    """Maximum number of flows that shared one direction of an interface."""
    events: int
    """Number of times at which rates were set."""
    history: Vector
    """Op, start, end and bytes per second of each record, if recorded, [records, 4]."""


class _State(NamedTuple):
    heap: Heap
    """Ends of executions."""
    ready: Ready
    network: Network
    pending: Ints
    finish: Vector
    """When each ready flow ends at its rate, [n]."""
    stack: Ints
    """Ops that ended and have not told their successors, [n]."""
    size: Ints
    """Length of the stack, [1]."""


@outer
def run(graph: Graph, host_of_task: Ints, capacity: Vector, policy: int, record: bool) -> FlowRun:
    """Simulate the flows of placed tasks.

    Args:
        graph: Graph of all iterations.
        host_of_task: Host of each task, [T].
        capacity: Bandwidth out of each host, then into each, in bytes per second, [2 H].
        policy: Index of a policy (`rates`).
        record: Whether to record the history of rates.
    """
    n = len(graph.size)
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    state = _new_state(graph, host_of_task, capacity)
    history = np.empty((64 if record else 0, 4))
    records, events, peak = 0, 0, 0
    now = since = 0.0
    for op in range(n):
        if graph.pending[op] == 0:
            _begin(op, now, policy, graph, state, start, end)
    changed = True
    while True:
        changed = _settle(now, policy, graph, state, start, end) or changed
        if changed:
            _advance(now - since, state.ready)
            if record:
                while records + state.ready.length[0] > len(history):
                    history = np.concatenate((history, np.empty_like(history)))
                records += _note(since, now, state.ready, history[records:])
            _drop_ended(state.ready, end)
            set_rates(policy, state.ready, state.network)
            peak = max(peak, _finishes(now, state))
            since = now
            events += 1
        count = state.ready.length[0]
        later = state.heap.time[0] if state.heap.size[0] > 0 else np.inf
        for i in range(count):
            later = min(later, state.finish[state.ready.order[i]])
        if later == np.inf:
            break
        changed = _end_until(later, now, state, end)
        now = later
    return FlowRun(start, end, peak, events, history[:records])


@outer
def _new_state(graph: Graph, place: Ints, capacity: Vector) -> _State:
    n, hosts = len(graph.size), len(capacity) // 2
    ready = Ready(
        np.empty(n, np.int64),
        np.zeros(n),
        np.zeros(n, np.int64),
        place[graph.source],
        place[graph.target] + hosts,
        graph.coflow,
        graph.size.copy(),
        np.zeros(n),
        np.zeros(1, np.int64),
    )
    return _State(
        new_heap(graph.iteration, np.zeros(n)),
        ready,
        Network(capacity, capacity.copy(), np.zeros(2 * hosts)),
        graph.pending.copy(),
        np.zeros(n),
        np.empty(n, np.int64),
        np.zeros(1, np.int64),
    )


@inner
def _begin(op: int, now: float, policy: int, graph: Graph, state: _State, start: Vector, end: Vector) -> bool:
    """Start an op; whether a flow became ready."""
    start[op] = now
    ready = state.ready
    crosses = ready.out[op] + len(state.network.capacity) // 2 != ready.into[op]
    if graph.size[op] > 0.0 and crosses:
        ready.order[ready.length[0]] = op
        ready.length[0] += 1
        if policy == ITER:
            ready.key[op] = float(graph.iteration[op])
        elif policy == FIFO:
            ready.key[op] = now
        return True
    if graph.duration[op] > 0.0:
        schedule(state.heap, op, now + graph.duration[op])
    else:
        end[op] = now
        state.stack[state.size[0]] = op
        state.size[0] += 1
    return False


@inner
def _settle(now: float, policy: int, graph: Graph, state: _State, start: Vector, end: Vector) -> bool:
    """Let all that ended release what waits for it; whether a flow became ready."""
    added = False
    while state.size[0] > 0:
        state.size[0] -= 1
        op = state.stack[state.size[0]]
        for place in range(graph.indptr[op], graph.indptr[op + 1]):
            follower = graph.successors[place]
            state.pending[follower] -= 1
            if state.pending[follower] == 0:
                added = _begin(follower, now, policy, graph, state, start, end) or added
    return added


@inner
def _advance(seconds: float, ready: Ready) -> None:
    for place in range(ready.length[0]):
        op = ready.order[place]
        ready.remaining[op] = max(ready.remaining[op] - ready.rate[op] * seconds, 0.0)


@inner
def _note(since: float, now: float, ready: Ready, history: Vector) -> int:
    """Write down who flowed; how many they are."""
    count = 0
    for place in range(ready.length[0]):
        op = ready.order[place]
        if ready.rate[op] > 0.0 and now > since:
            history[count, 0], history[count, 1] = op, since
            history[count, 2], history[count, 3] = now, ready.rate[op]
            count += 1
    return count


@inner
def _drop_ended(ready: Ready, end: Vector) -> None:
    kept = 0
    for place in range(ready.length[0]):
        op = ready.order[place]
        if np.isnan(end[op]):
            ready.order[kept] = op
            kept += 1
    ready.length[0] = kept


@inner
def _finishes(now: float, state: _State) -> int:
    """When flows end at their rates; most flows on one direction of an interface."""
    ready, load = state.ready, state.network.load
    load[:] = 0.0
    for place in range(ready.length[0]):
        op = ready.order[place]
        state.finish[op] = now + ready.remaining[op] / ready.rate[op] if ready.rate[op] > 0.0 else np.inf
        load[ready.out[op]] += 1.0
        load[ready.into[op]] += 1.0
    most = 0.0
    for flows in load:
        most = max(most, flows)
    return int(most)


@inner
def _end_until(later: float, now: float, state: _State, end: Vector) -> bool:
    """End what ends by a time; whether a flow did."""
    flowed = False
    while state.heap.size[0] > 0 and state.heap.time[0] <= later:
        op = pop(state.heap)
        end[op] = later
        state.stack[state.size[0]] = op
        state.size[0] += 1
    for place in range(state.ready.length[0]):
        op = state.ready.order[place]
        if state.finish[op] <= later + _SAME * (later - now):
            end[op] = later
            state.stack[state.size[0]] = op
            state.size[0] += 1
            flowed = True
    return flowed


@outer
def longest_path_s(graph: Graph, host_of_task: Ints, capacity: Vector) -> float:
    """Length of the longest chain of ops without contention of flows, in seconds."""
    n, hosts = len(graph.size), len(capacity) // 2
    pending, reached = graph.pending.copy(), np.zeros(n)
    stack, size, longest = np.empty(n, np.int64), 0, 0.0
    for op in range(n):
        if pending[op] == 0:
            stack[size] = op
            size += 1
    while size > 0:
        size -= 1
        op = stack[size]
        source, target = host_of_task[graph.source[op]], host_of_task[graph.target[op]]
        seconds = graph.duration[op]
        if source != target:
            seconds += graph.size[op] / min(capacity[source], capacity[hosts + target])
        until = reached[op] + seconds
        longest = max(longest, until)
        for spot in range(graph.indptr[op], graph.indptr[op + 1]):
            follower = graph.successors[spot]
            reached[follower] = max(reached[follower], until)
            pending[follower] -= 1
            if pending[follower] == 0:
                stack[size] = follower
                size += 1
    return longest
