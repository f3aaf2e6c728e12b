"""Messages that share the edges of a network like TCP connections: the other compiled core of `sim.programs`.

Each pair of ranks is a connection. Its messages go one after the other, in the order in which they became ready. The
messages at the head of their connections share the edges: proportional rates (`sharing`), found again whenever one
starts or ends. A message is in when the latency of its route has passed after its last byte.

A connection over two full edges gets less than its neighbours over one. Of an all-reduce on a chain of four hosts (100
Mbit/s, 4 MB) max-min rates predict 0.69 s, proportional ones 0.78 s; 0.78 s were measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.dependences import Dependences
from wirewise.sim.compiled import inner, outer
from wirewise.sim.heap import Heap, new_heap, pop, schedule
from wirewise.sim.messages import MessageTransport, arrive, compute, finish, pass_gate, write_arrival
from wirewise.sim.sharing import InterfaceUse, Shares, join, leave, new_shares, proportional_rates

__all__ = ["run_fluid"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SAME = 1e-12
"""Relative difference of times that are one."""
_LEFT = 1e-9
"""Bytes below which a message is sent whole: rounding leaves less than that of any message."""


class _State(NamedTuple):
    events: Heap
    """Arrivals of items, ends of additions, items that leave their source, connections whose message ends."""
    starters: Heap
    """Items whose values are there, all at time 0 and so by their number."""
    start: Floats
    end: Floats
    send_left: Ints
    receive_left: Ints
    gate_left: Ints
    processor_free: Floats
    shared_free: Floats
    arrived: Ints
    taken: Ints
    busy: Floats
    filled: Floats
    """When the bucket of each edge is full again."""
    following: Ints
    """Item behind each item in the queue of its connection, or -1."""
    head: Ints
    """Item that each connection sends, or -1, [routes]."""
    tail: Ints
    left: Floats
    """Bytes that each connection has left of its message."""
    rate: Floats
    since: Floats
    """When `left` was so, at `rate` since then."""
    changed: Ints
    """Connections that started or stopped at this moment."""
    counts: Ints
    """How many those are, and the last stamp of `sharing`, [2]."""


@inner
def _begin(d: Dependences, trip: MessageTransport, s: _State, item: int, now: float) -> None:
    """Put the next message of a connection on its way, with what buckets let pass at once."""
    message = item % len(d.source)
    route = trip.route[message]
    at_once = trip.size_bytes[message] if len(trip.burst_s) else 0.0
    for k in range(trip.first[route], trip.first[route + 1]):
        edge = trip.edges[k]
        hold = trip.fraction[k] * trip.size_bytes[message] * trip.s_per_byte[edge]
        s.busy[edge] += hold
        if len(trip.burst_s):
            room_s = max(trip.burst_s[edge] - max(s.filled[edge] - now, 0.0), 0.0)
            at_once = min(at_once, room_s / (trip.fraction[k] * trip.s_per_byte[edge]))
            s.filled[edge] = max(s.filled[edge], now) + hold
    s.head[route], s.left[route], s.since[route] = item, trip.size_bytes[message] - at_once, now


@inner
def _enqueue(
    d: Dependences,
    trip: MessageTransport,
    s: _State,
    uses: InterfaceUse,
    shares: Shares,
    item: int,
    now: float,
) -> None:
    route = trip.route[item % len(d.source)]
    if s.head[route] >= 0:
        s.following[s.tail[route]] = item
    else:
        _begin(d, trip, s, item, now)
        join(route, uses, shares)
        s.rate[route] = 0.0
        _note(s, route)
    s.tail[route] = item


@inner
def _note(s: _State, route: int) -> None:
    s.changed[s.counts[0]] = route
    s.counts[0] += 1


@inner
def _sent(
    d: Dependences,
    trip: MessageTransport,
    s: _State,
    uses: InterfaceUse,
    shares: Shares,
    route: int,
    now: float,
) -> None:
    """The message of a connection is sent: the next one follows at the same rate, or the others have its share."""
    item = s.head[route]
    schedule(s.events, item, now + trip.latency_s[item % len(d.source)])
    if s.following[item] >= 0:
        _begin(d, trip, s, s.following[item], now)
        _plan(s, route, now)
    else:
        s.head[route] = -1
        leave(route, uses, shares)
        _note(s, route)


@inner
def _plan(s: _State, route: int, now: float) -> None:
    """Schedule the end of a connection's message at its rate."""
    if s.left[route] <= _LEFT:
        schedule(s.events, 3 * len(s.start) + route, now)
    elif s.rate[route] > 0.0:
        schedule(s.events, 3 * len(s.start) + route, now + s.left[route] / s.rate[route])


@inner
def _share(s: _State, uses: InterfaceUse, shares: Shares, now: float) -> None:
    """Find the rates of all connections that those which changed share edges with."""
    known = s.counts[1]
    for number in range(s.counts[0]):
        route = s.changed[number]
        for use in range(uses.indptr[route], uses.indptr[route + 1]):
            edge = uses.interface[use]
            if shares.seen[edge] > known or shares.head[edge] < 0:
                continue
            s.counts[1] += 1
            for place in range(proportional_rates(edge, uses, shares, s.counts[1])):
                other = shares.members[place]
                if shares.fair[other] != s.rate[other]:
                    s.left[other] = max(s.left[other] - s.rate[other] * (now - s.since[other]), 0.0)
                    s.rate[other], s.since[other] = shares.fair[other], now
                    _plan(s, other, now)
    s.counts[0] = 0


@inner
def _start(
    d: Dependences,
    trip: MessageTransport,
    s: _State,
    uses: InterfaceUse,
    shares: Shares,
    item: int,
    now: float,
) -> None:
    segment, message = divmod(item, len(d.source))
    s.start[item] = now
    if trip.sending_s[message] > 0.0:
        leaves = compute(s, trip.source[message], now, trip.sending_s[message])
        schedule(s.events, 2 * len(s.start) + item, leaves)
    else:
        _enqueue(d, trip, s, uses, shares, item, now)
    for k in range(d.by_send.first[message], d.by_send.first[message + 1]):
        pass_gate(d, s, d.by_send.items[k], segment)


@inner
def _take_event(
    d: Dependences, trip: MessageTransport, s: _State, uses: InterfaceUse, shares: Shares, now: float
) -> None:
    items = len(s.start)
    code = pop(s.events)
    if code < items:
        arrive(s, code)
    elif code < 2 * items:
        finish(d, s, code - items, now)
    elif code < 3 * items:
        _enqueue(d, trip, s, uses, shares, code - 2 * items, now)
    else:
        _sent(d, trip, s, uses, shares, code - 3 * items, now)


@outer
def _simulate(d: Dependences, trip: MessageTransport, s: _State, uses: InterfaceUse, shares: Shares) -> None:
    for item in range(len(s.start)):
        if s.send_left[item] == 0:
            schedule(s.starters, item, 0.0)
    now = 0.0
    while True:
        write_arrival(d, trip, s, now)
        while s.starters.size[0]:
            _start(d, trip, s, uses, shares, pop(s.starters), now)
            write_arrival(d, trip, s, now)
        _share(s, uses, shares, now)
        if s.events.size[0] == 0:
            return
        now = s.events.time[0]
        # What ends at one time but for rounding is one change of rates: 9,120 equal flows took 13 s without it.
        while s.events.size[0] and s.events.time[0] <= now * (1 + _SAME):
            _take_event(d, trip, s, uses, shares, now)


def run_fluid(
    d: Dependences, trip: MessageTransport, segments: int, ranks: int
) -> tuple[Floats, Floats, Floats]:
    """Simulate messages; returns start and end of each item, and busy time of each edge, as `messages.run` does."""
    edges, routes, n = len(trip.s_per_byte), len(trip.first) - 1, segments * len(d.source)
    owner = np.repeat(np.arange(routes), np.diff(trip.first))
    uses = InterfaceUse(trip.first, trip.edges, trip.fraction, owner, 1 / trip.s_per_byte)
    codes = 3 * n + routes
    state = _State(
        events=new_heap(np.zeros(codes, np.int64), np.zeros(codes)),
        starters=new_heap(np.zeros(n, np.int64), np.zeros(n)),
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        send_left=np.tile(d.send_waits, segments),
        receive_left=np.tile(d.receive_waits + 1, segments),
        gate_left=np.tile(d.gate_waits, segments),
        processor_free=np.zeros(ranks),
        shared_free=np.zeros(trip.processors),
        arrived=np.empty(n, np.int64),
        taken=np.zeros(2, np.int64),
        busy=np.zeros(edges),
        filled=np.zeros(edges),
        following=np.full(n, -1, np.int64),
        head=np.full(routes, -1, np.int64),
        tail=np.full(routes, -1, np.int64),
        left=np.zeros(routes),
        rate=np.zeros(routes),
        since=np.zeros(routes),
        changed=np.empty(2 * n + routes, np.int64),
        counts=np.zeros(2, np.int64),
    )
    _simulate(d, trip, state, uses, new_shares(routes, len(trip.edges), edges))
    return state.start, state.end, state.busy
