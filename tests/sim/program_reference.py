"""The model of `sim.programs` spelled out slowly: look at every message at every moment."""

from __future__ import annotations

import itertools


def simulate_slowly(program, network, size_bytes, reduce_s_per_byte=0.0):
    """Start and end of each (segment, message)."""
    messages, sizes = program.messages(), program.chunk_bytes(size_bytes)
    everything = itertools.product(range(program.segments), range(len(messages)))
    items = sorted(everything, key=lambda item: (item[0], *_place(messages[item[1]], program.ranks)))
    ready, start, arrival, end = set(), {}, {}, {}
    free_s = [0.0] * len(network.edges)
    adder_free_s = [0.0] * program.ranks

    def moved(n, reducing=False):
        found = [sizes[t.chunk] for t in messages[n].transfers if t.reduces or not reducing]
        return sum(found) / program.segments

    def writes_done(segment, cell, step, now):
        return all(
            end.get((segment, n), float("inf")) <= now
            for n, m in enumerate(messages)
            if m.step < step and any((t.target, t.chunk) == cell for t in m.transfers)
        )

    def reads_sent(segment, cell, step):
        return all(
            (segment, n) in start
            for n, m in enumerate(messages)
            if m.step <= step and any((t.source, t.chunk) == cell for t in m.transfers)
        )

    def may_send(item, now):
        m = messages[item[1]]
        return all(writes_done(item[0], (m.source, t.chunk), m.step, now) for t in m.transfers)

    def may_take(item, now):
        m = messages[item[1]]
        cells = [(m.target, t.chunk) for t in m.transfers]
        return all(writes_done(item[0], c, m.step, now) and reads_sent(item[0], c, m.step) for c in cells)

    def settle(now):
        """Everything that can happen at this moment, until nothing more does."""
        before = None
        while before != (len(ready), len(start), len(end)):
            before = len(ready), len(start), len(end)
            for item in items:
                taken = item in end or arrival.get(item, float("inf")) > now or not may_take(item, now)
                if not taken:
                    adding_s = reduce_s_per_byte * moved(item[1], reducing=True)
                    target = messages[item[1]].target
                    end[item] = max(now, adder_free_s[target]) + adding_s if adding_s else now
                    adder_free_s[target] = max(adder_free_s[target], end[item] if adding_s else 0.0)
                if item not in ready and may_send(item, now):
                    ready.add(item)
            for item in (i for i in items if i in ready and i not in start):
                m = messages[item[1]]
                route = network.route(m.source, m.target)
                if all(free_s[e] <= now for e, _ in route):
                    start[item] = now
                    for e, fraction in route:
                        free_s[e] = now + fraction * moved(item[1]) / network.edges[e].bandwidth_bytes_per_s
                    moving_s = moved(item[1]) / network.rate(m.source, m.target)
                    arrival[item] = now + network.latency(m.source, m.target) + moving_s
                    break

    now = 0.0
    settle(now)
    while len(end) < len(items) or max(end.values(), default=0.0) > now:
        now = min(t for t in (*free_s, *arrival.values(), *end.values()) if t > now)
        settle(now)
    return start, end


def _place(message, ranks):
    return message.step, (message.target - message.source) % ranks, message.source
