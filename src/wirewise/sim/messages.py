"""Messages over the edges of a network, event by event: the compiled core of `sim.programs`.

An item is one segment of one message; items are numbered by segment, then in the order of the messages. An item
starts once its value is ready and all edges of its route are free; ties go to the lowest number. A blocked item waits
at one of its busy edges, in a heap, and is retried when that edge is free. Arrivals at a time are processed before
any start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.dependences import Dependences
from wirewise.sim.compiled import inner, outer
from wirewise.sim.heap import Heap, new_heap, pop, schedule
from wirewise.sim.waiting import Items, leave, new_items, wait

__all__ = ["MessageTransport", "arrive", "compute", "finish", "pass_gate", "run", "write_arrival"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class MessageTransport(NamedTuple):
    """Routes and costs of the messages [M]."""

    route: Ints
    """Index of the route of each message, [M]."""
    first: Ints
    """First edge of each route, [routes + 1]."""
    edges: Ints
    fraction: Floats
    """Fraction of a message's bytes on each of its route's edges, as `edges`."""
    travel_s: Floats
    """Seconds from the start of a message to its arrival, [M]."""
    size_bytes: Floats
    """Bytes of each message, [M]."""
    s_per_byte: Floats
    """Seconds per byte on each edge, [edges]."""
    burst_s: Floats
    """Seconds of bytes that each edge passes at once after a pause; empty if no edge does, [edges] or [0]."""
    latency_s: Floats
    """Part of `travel_s` that does not grow with the bytes, [M]."""
    exclusive: bool
    """Whether a message holds all its edges for all of `travel_s`."""
    target: Ints
    """Receiver of each message, [M]."""
    sending_s: Floats
    """CPU time of the sender to send a message, in seconds, [M]."""
    adding_s: Floats
    """CPU time of the receiver to receive a message and to reduce it, in seconds, [M]."""
    source: Ints
    """Sender of each message, [M]."""
    processors: int
    """Number of CPUs shared by all ranks; 0 if each has its own."""


class _State(NamedTuple):
    events: Heap
    """Arrivals of items, ends of additions and edges that get free, by time, then by number."""
    starters: Heap
    """Items that may start now, all at time 0 and so by their number."""
    items: Items
    start: Floats
    end: Floats
    send_left: Ints
    receive_left: Ints
    gate_left: Ints
    free: Floats
    """When each edge is free."""
    busy: Floats
    processor_free: Floats
    """When each rank has sent, received and added what it had to."""
    shared_free: Floats
    """When each shared processor is free."""
    woken: NDArray[np.bool_]
    """Whether there is an event for the time at which an edge is free."""
    arrived: Ints
    """Items in the order in which they can be taken in."""
    taken: Ints
    """How many of those have been taken in, and how many there are, [2]."""


@inner
def pass_gate(d: Dependences, s: Any, gate: int, segment: int) -> None:
    """Count one message at a gate."""
    gates, messages = len(d.gate_waits), len(d.source)
    s.gate_left[segment * gates + gate] -= 1
    if s.gate_left[segment * gates + gate]:
        return
    for k in range(d.sends.first[gate], d.sends.first[gate + 1]):
        item = segment * messages + d.sends.items[k]
        s.send_left[item] -= 1
        if s.send_left[item] == 0:
            schedule(s.starters, item, 0.0)
    for k in range(d.receives.first[gate], d.receives.first[gate + 1]):
        arrive(s, segment * messages + d.receives.items[k])


@inner
def arrive(s: Any, item: int) -> None:
    """Count an arrival, or an opened gate after which the target accepts the message."""
    s.receive_left[item] -= 1
    if s.receive_left[item] == 0:
        s.arrived[s.taken[1]] = item
        s.taken[1] += 1


@inner
def write_arrival(d: Dependences, trip: MessageTransport, s: Any, now: float) -> None:
    """Store or reduce an arrived message."""
    messages = len(d.source)
    while s.taken[0] < s.taken[1]:
        item = s.arrived[s.taken[0]]
        s.taken[0] += 1
        message = item % messages
        if trip.adding_s[message] == 0.0:
            finish(d, s, item, now)
        else:
            rank = trip.target[message]
            schedule(s.events, len(s.start) + item, compute(s, rank, now, trip.adding_s[message]))


@inner
def compute(s: Any, rank: int, now: float, seconds: float) -> float:
    """Occupy a rank, and a CPU if ranks share them, as soon as both are free; returns the end time."""
    begins = max(s.processor_free[rank], now)
    if len(s.shared_free):
        first = 0
        for other in range(1, len(s.shared_free)):
            if s.shared_free[other] < s.shared_free[first]:
                first = other
        begins = max(begins, s.shared_free[first])
        s.shared_free[first] = begins + seconds
    s.processor_free[rank] = begins + seconds
    return begins + seconds


@inner
def finish(d: Dependences, s: Any, item: int, now: float) -> None:
    segment, message = divmod(item, len(d.source))
    s.end[item] = now
    for k in range(d.by_receive.first[message], d.by_receive.first[message + 1]):
        pass_gate(d, s, d.by_receive.items[k], segment)


@inner
def _blocked(trip: MessageTransport, s: _State, message: int, now: float) -> int:
    """The edge of the route that is busy the longest, or -1."""
    found, until, route = -1, now, trip.route[message]
    for k in range(trip.first[route], trip.first[route + 1]):
        edge = trip.edges[k]
        if _free_s(trip, s, edge) > until:
            found, until = edge, _free_s(trip, s, edge)
    return found


@inner
def _free_s(trip: MessageTransport, s: _State, edge: int) -> float:
    """When an edge takes the next message: its bucket may be overdrawn by one message at a time."""
    return s.free[edge] - trip.burst_s[edge] if len(trip.burst_s) else s.free[edge]


@inner
def _start(d: Dependences, trip: MessageTransport, s: _State, item: int, now: float) -> None:
    segment, message = divmod(item, len(d.source))
    s.start[item] = now
    leaves = now
    if trip.sending_s[message] > 0.0:
        leaves = compute(s, trip.source[message], now, trip.sending_s[message])
    route, travel_s = trip.route[message], trip.travel_s[message]
    if len(trip.burst_s):
        travel_s = trip.latency_s[message]
    for k in range(trip.first[route], trip.first[route + 1]):
        edge = trip.edges[k]
        whole = trip.travel_s[message] if trip.exclusive else trip.size_bytes[message] * trip.s_per_byte[edge]
        hold = trip.fraction[k] * whole
        if len(trip.burst_s):
            s.free[edge] = max(s.free[edge], leaves) + hold
            travel_s = max(travel_s, trip.latency_s[message] + s.free[edge] - leaves - trip.burst_s[edge])
        else:
            s.free[edge] = leaves + hold
        s.busy[edge] += hold
        _wake(trip, s, edge)
    schedule(s.events, item, leaves + travel_s)
    for k in range(d.by_send.first[message], d.by_send.first[message + 1]):
        pass_gate(d, s, d.by_send.items[k], segment)


@inner
def _wake(trip: MessageTransport, s: _State, edge: int) -> None:
    """Look at the edge again when it is free, if any item waits there."""
    if s.items.top[edge] >= 0 and not s.woken[edge]:
        s.woken[edge] = True
        schedule(s.events, 2 * len(s.start) + edge, _free_s(trip, s, edge))


@inner
def _start_or_wait(d: Dependences, trip: MessageTransport, s: _State, now: float) -> None:
    """Look at the next item that may start."""
    item = pop(s.starters)
    came_from = s.items.waits_at[item]
    if came_from >= 0:
        if _free_s(trip, s, came_from) > now:
            return
        leave(s.items, s.starters, came_from)
    blocked = _blocked(trip, s, item % len(d.source), now)
    if blocked < 0:
        _start(d, trip, s, item, now)
    else:
        wait(s.items, s.starters, item, blocked)
        _wake(trip, s, blocked)
    if came_from >= 0 and s.items.top[came_from] >= 0 and _free_s(trip, s, came_from) <= now:
        schedule(s.starters, s.items.top[came_from], 0.0)


@inner
def _take_event(d: Dependences, s: _State, now: float) -> None:
    items = len(s.start)
    code = pop(s.events)
    if code < items:
        arrive(s, code)
    elif code < 2 * items:
        finish(d, s, code - items, now)
    else:
        edge = code - 2 * items
        s.woken[edge] = False
        if s.items.top[edge] >= 0:
            schedule(s.starters, s.items.top[edge], 0.0)


@outer
def _simulate(d: Dependences, trip: MessageTransport, s: _State) -> None:
    for item in range(len(s.start)):
        if s.send_left[item] == 0:
            schedule(s.starters, item, 0.0)
    now = 0.0
    while True:
        write_arrival(d, trip, s, now)
        while s.starters.size[0]:
            _start_or_wait(d, trip, s, now)
            write_arrival(d, trip, s, now)
        if s.events.size[0] == 0:
            return
        now = s.events.time[0]
        while s.events.size[0] and s.events.time[0] == now:
            _take_event(d, s, now)


def _heap(numbers: int) -> Heap:
    """No events; of those at one time the least number comes first."""
    heap: Heap = new_heap(np.zeros(numbers, np.int64), np.zeros(numbers))
    return heap


def run(d: Dependences, trip: MessageTransport, segments: int, ranks: int) -> tuple[Floats, Floats, Floats]:
    """Simulate all items; returns start and end of each, [segments * M], and busy time of each edge, in seconds.

    Args:
        d: Dependences of the messages.
        trip: Routes and costs of the messages.
        segments: Number of segments of each message.
        ranks: Number of ranks.
    """
    edges, n = len(trip.s_per_byte), segments * len(d.source)
    state = _State(
        events=_heap(2 * n + edges),
        starters=_heap(n),
        items=new_items(n, edges),
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        send_left=np.tile(d.send_waits, segments),
        receive_left=np.tile(d.receive_waits + 1, segments),
        gate_left=np.tile(d.gate_waits, segments),
        free=np.zeros(edges),
        busy=np.zeros(edges),
        processor_free=np.zeros(ranks),
        shared_free=np.zeros(trip.processors),
        woken=np.zeros(edges, np.bool_),
        arrived=np.empty(n, np.int64),
        taken=np.zeros(2, np.int64),
    )
    _simulate(d, trip, state)
    return state.start, state.end, state.busy
