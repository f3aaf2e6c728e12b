"""The model of `sim.fluid` spelled out slowly: one connection a pair, max-min rates by progressive filling."""

from __future__ import annotations

import itertools


def fill(flows, capacity):
    """Max-min rates; `flows` to the weights of their edges."""
    rate, left, growing = dict.fromkeys(flows, 0.0), dict(capacity), set(flows)
    while growing:
        load = {e: sum(flows[f].get(e, 0.0) for f in growing) for e in left}
        step = min(left[e] / load[e] for e in left if load[e] > 0)
        for f in growing:
            rate[f] += step
        left = {e: left[e] - step * load[e] for e in left}
        full = {e for e in left if load[e] > 0 and left[e] <= 1e-9 * capacity[e]}
        growing -= {f for f in growing if full & flows[f].keys()}
    return rate


def simulate_fluid(program, network, size_bytes):
    """Seconds until the last message is in."""
    messages, sizes = program.messages(), program.chunk_bytes(size_bytes)
    everything = itertools.product(range(program.segments), range(len(messages)))
    order = sorted(
        everything,
        key=lambda i: (
            i[0],
            messages[i[1]].step,
            (messages[i[1]].target - messages[i[1]].source) % program.ranks,
            messages[i[1]].source,
        ),
    )
    capacity = {number: edge.bandwidth_bytes_per_s for number, edge in enumerate(network.edges)}
    queues, left, arrival, started, end = {}, {}, {}, set(), {}

    def written(segment, cell, step, now):
        return all(
            end.get((segment, n), float("inf")) <= now
            for n, m in enumerate(messages)
            if m.step < step and any((t.target, t.chunk) == cell for t in m.transfers)
        )

    def read(segment, cell, step):
        return all(
            (segment, n) in started
            for n, m in enumerate(messages)
            if m.step <= step and any((t.source, t.chunk) == cell for t in m.transfers)
        )

    def settle(now):
        before = None
        while before != (len(started), len(end)):
            before = len(started), len(end)
            for item in order:
                segment, m = item[0], messages[item[1]]
                cells = [(m.target, t.chunk) for t in m.transfers]
                if item not in end and arrival.get(item, float("inf")) <= now:
                    if all(written(segment, c, m.step, now) and read(segment, c, m.step) for c in cells):
                        end[item] = now
                if item not in started and all(
                    written(segment, (m.source, t.chunk), m.step, now) for t in m.transfers
                ):
                    started.add(item)
                    queues.setdefault((m.source, m.target), []).append(item)
                    left[item] = sum(sizes[t.chunk] for t in m.transfers) / program.segments

    now = 0.0
    settle(now)
    while len(end) < len(order):
        flows = {pair: dict(network.route(*pair)) for pair, queue in queues.items() if queue}
        rate = fill(flows, capacity)
        times = [now + left[queues[pair][0]] / rate[pair] for pair in flows]
        later = min([*times, *(t for t in arrival.values() if t > now)])
        for pair in flows:
            left[queues[pair][0]] -= rate[pair] * (later - now)
        now = later
        for pair in flows:
            if left[queues[pair][0]] <= 1e-9 * size_bytes:
                arrival[queues[pair].pop(0)] = now + network.latency(*pair)
        settle(now)
    return max(end.values(), default=0.0)
