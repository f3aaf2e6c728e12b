"""Messages over the edges of a network, event by event: the compiled core of `sim.programs`.

An item is one segment of one message. It starts once its value is there and all edges of its route are free; of
those that could start at one time, the one that was ready first does, then the one with the least number. An
item that cannot start waits at one of the edges that keep it, in a heap by (ready, number), and is looked at again
when that edge is free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.dependences import Dependences
from wirewise.sim.compiled import inner, outer

__all__ = ["Trip", "run"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Trip(NamedTuple):
    """How the messages [M] travel."""

    route: Ints
    """Number of the route of each message, [M]."""
    first: Ints
    """Where a route's edges begin, [routes + 1]."""
    edges: Ints
    travel_s: Floats
    """From the start of a message to its arrival, [M]."""
    size_bytes: Floats
    """[M]"""
    s_per_byte: Floats
    """Of each edge, [edges]."""
    exclusive: bool
    """Whether a message holds all its edges for all of `travel_s`."""
    target: Ints
    """[M]"""
    adding_s: Floats
    """What the target takes to add a message to its own values, [M]."""


class _State(NamedTuple):
    ready: Floats
    start: Floats
    end: Floats
    send_left: Ints
    receive_left: Ints
    gate_left: Ints
    free: Floats
    """When each edge is free."""
    busy: Floats
    adder_free: Floats
    top: Ints
    """First item that waits at each edge, or -1."""
    woken: NDArray[np.bool_]
    """Whether there is an event for the time at which the edge is free."""
    low: Ints
    """Children of a waiting item in its edge's heap, or -1."""
    high: Ints
    waits_at: Ints
    """Edge at which an item waits, or -1."""
    event_time: Floats
    """Heap of events: items that arrive, then items that are added, then edges that are free."""
    event: Ints
    starters: Ints
    """Heap of items that may start now."""
    arrived: Ints
    """Items that arrived and have not been taken in."""
    sizes: Ints
    """Of the three above."""


@inner
def _sooner(s: _State, a: int, b: int) -> bool:
    return s.ready[a] < s.ready[b] or (s.ready[a] == s.ready[b] and a < b)


@inner
def _merge(s: _State, a: int, b: int) -> int:
    """One skew heap of two (Sleator, Tarjan 1986); the first item."""
    if a < 0:
        return b
    if b < 0:
        return a
    if _sooner(s, b, a):
        a, b = b, a
    first = a
    while True:
        other = s.high[a]
        s.high[a] = s.low[a]
        if other < 0:
            s.low[a] = b
            return first
        if _sooner(s, other, b):
            other, b = b, other
        s.low[a] = b
        a, b = b, other


@inner
def _push_event(s: _State, time: float, code: int) -> None:
    place = s.sizes[0]
    s.sizes[0] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if s.event_time[parent] <= time:
            break
        s.event_time[place], s.event[place] = s.event_time[parent], s.event[parent]
        place = parent
    s.event_time[place], s.event[place] = time, code


@inner
def _pop_event(s: _State) -> int:
    first = s.event[0]
    s.sizes[0] -= 1
    size = s.sizes[0]
    time, code = s.event_time[size], s.event[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and s.event_time[child + 1] < s.event_time[child]:
            child += 1
        if s.event_time[child] >= time:
            break
        s.event_time[place], s.event[place] = s.event_time[child], s.event[child]
        place = child
    s.event_time[place], s.event[place] = time, code
    return first


@inner
def _push_starter(s: _State, item: int) -> None:
    place = s.sizes[1]
    s.sizes[1] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not _sooner(s, item, s.starters[parent]):
            break
        s.starters[place] = s.starters[parent]
        place = parent
    s.starters[place] = item


@inner
def _pop_starter(s: _State) -> int:
    first = s.starters[0]
    s.sizes[1] -= 1
    size = s.sizes[1]
    item, place = s.starters[size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _sooner(s, s.starters[child + 1], s.starters[child]):
            child += 1
        if not _sooner(s, s.starters[child], item):
            break
        s.starters[place] = s.starters[child]
        place = child
    s.starters[place] = item
    return first


@inner
def _pass(d: Dependences, s: _State, gate: int, segment: int, now: float) -> None:
    """Count one message at a gate."""
    gates, messages = len(d.gate_waits), len(d.source)
    s.gate_left[segment * gates + gate] -= 1
    if s.gate_left[segment * gates + gate]:
        return
    for k in range(d.sends.first[gate], d.sends.first[gate + 1]):
        item = segment * messages + d.sends.items[k]
        s.send_left[item] -= 1
        if s.send_left[item] == 0:
            s.ready[item] = now
            _push_starter(s, item)
    for k in range(d.receives.first[gate], d.receives.first[gate + 1]):
        _arrive(s, segment * messages + d.receives.items[k])


@inner
def _arrive(s: _State, item: int) -> None:
    """Count the arrival, or a gate that lets the target take the message in."""
    s.receive_left[item] -= 1
    if s.receive_left[item] == 0:
        s.arrived[s.sizes[2]] = item
        s.sizes[2] += 1


@inner
def _take_in(d: Dependences, trip: Trip, s: _State, now: float) -> None:
    """Write or add what arrived."""
    messages = len(d.source)
    while s.sizes[2]:
        s.sizes[2] -= 1
        item = s.arrived[s.sizes[2]]
        message = item % messages
        if trip.adding_s[message] == 0.0:
            _finish(d, s, item, now)
        else:
            rank = trip.target[message]
            s.adder_free[rank] = max(s.adder_free[rank], now) + trip.adding_s[message]
            _push_event(s, s.adder_free[rank], len(s.ready) + item)


@inner
def _finish(d: Dependences, s: _State, item: int, now: float) -> None:
    segment, message = divmod(item, len(d.source))
    s.end[item] = now
    for k in range(d.by_receive.first[message], d.by_receive.first[message + 1]):
        _pass(d, s, d.by_receive.items[k], segment, now)


@inner
def _blocked(trip: Trip, s: _State, message: int, now: float) -> int:
    """The edge of the route that is busy the longest, or -1."""
    found, until, route = -1, now, trip.route[message]
    for k in range(trip.first[route], trip.first[route + 1]):
        if s.free[trip.edges[k]] > until:
            found, until = trip.edges[k], s.free[trip.edges[k]]
    return found


@inner
def _start(d: Dependences, trip: Trip, s: _State, item: int, now: float) -> None:
    segment, message = divmod(item, len(d.source))
    s.start[item] = now
    route = trip.route[message]
    for k in range(trip.first[route], trip.first[route + 1]):
        edge = trip.edges[k]
        hold = trip.travel_s[message] if trip.exclusive else trip.size_bytes[message] * trip.s_per_byte[edge]
        s.free[edge] = now + hold
        s.busy[edge] += hold
        _wake(s, edge)
    _push_event(s, now + trip.travel_s[message], item)
    for k in range(d.by_send.first[message], d.by_send.first[message + 1]):
        _pass(d, s, d.by_send.items[k], segment, now)


@inner
def _wake(s: _State, edge: int) -> None:
    """Look at the edge again when it is free, if any item waits there."""
    if s.top[edge] >= 0 and not s.woken[edge]:
        s.woken[edge] = True
        _push_event(s, s.free[edge], 2 * len(s.ready) + edge)


@inner
def _wait(s: _State, item: int, edge: int) -> None:
    s.waits_at[item], s.low[item], s.high[item] = edge, -1, -1
    s.top[edge] = _merge(s, s.top[edge], item)
    _wake(s, edge)


@inner
def _leave(s: _State, edge: int) -> None:
    """The first item that waits at an edge waits there no more."""
    item = s.top[edge]
    s.waits_at[item] = -1
    s.top[edge] = _merge(s, s.low[item], s.high[item])


@inner
def _start_or_wait(d: Dependences, trip: Trip, s: _State, now: float) -> None:
    """Look at the next item that may start."""
    item = _pop_starter(s)
    came_from = s.waits_at[item]
    if came_from >= 0:
        if s.free[came_from] > now:
            return
        _leave(s, came_from)
    blocked = _blocked(trip, s, item % len(d.source), now)
    if blocked < 0:
        _start(d, trip, s, item, now)
    else:
        _wait(s, item, blocked)
    if came_from >= 0 and s.top[came_from] >= 0 and s.free[came_from] <= now:
        _push_starter(s, s.top[came_from])


@inner
def _take_event(d: Dependences, s: _State, now: float) -> None:
    items = len(s.ready)
    code = _pop_event(s)
    if code < items:
        _arrive(s, code)
    elif code < 2 * items:
        _finish(d, s, code - items, now)
    else:
        edge = code - 2 * items
        s.woken[edge] = False
        if s.top[edge] >= 0:
            _push_starter(s, s.top[edge])


@inner
def _simulate(d: Dependences, trip: Trip, s: _State) -> None:
    now = 0.0
    while True:
        _take_in(d, trip, s, now)
        while s.sizes[1]:
            _start_or_wait(d, trip, s, now)
            _take_in(d, trip, s, now)
        if s.sizes[0] == 0:
            return
        now = s.event_time[0]
        while s.sizes[0] and s.event_time[0] == now:
            _take_event(d, s, now)


@outer
def run(d: Dependences, trip: Trip, segments: int, ranks: int) -> tuple[Floats, Floats, Floats]:
    """When each item starts and ends, [segments * M] each, and how long each edge is held, [edges].

    Args:
        d: What the messages wait for.
        trip: How they travel.
        segments: Parts of each message.
        ranks: How many.
    """
    messages, edges = len(d.source), len(trip.s_per_byte)
    n = segments * messages
    send_left, receive_left = np.empty(n, np.int64), np.empty(n, np.int64)
    gate_left = np.empty(segments * len(d.gate_waits), np.int64)
    for k in range(segments):
        send_left[k * messages : (k + 1) * messages] = d.send_waits
        receive_left[k * messages : (k + 1) * messages] = d.receive_waits + 1
        gate_left[k * len(d.gate_waits) : (k + 1) * len(d.gate_waits)] = d.gate_waits
    s = _State(
        np.zeros(n),
        np.full(n, np.nan),
        np.full(n, np.nan),
        send_left,
        receive_left,
        gate_left,
        np.zeros(edges),
        np.zeros(edges),
        np.zeros(ranks),
        np.full(edges, -1, np.int64),
        np.zeros(edges, np.bool_),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.empty(n + edges + 1),
        np.empty(n + edges + 1, np.int64),
        np.empty(n + edges + 1, np.int64),
        np.empty(n + 1, np.int64),
        np.zeros(3, np.int64),
    )
    for item in range(n):
        if send_left[item] == 0:
            _push_starter(s, item)
    _simulate(d, trip, s)
    return s.start, s.end, s.busy
