"""The model of `sim.fluid` spelled out slowly: one connection a pair, proportional rates by a multiplicative ascent."""

from __future__ import annotations

import itertools

import numpy as np


def proportional(flows, capacity):
    """Rates whose logarithms have the largest sum; `flows` to the weights of their edges.

    Each edge's price is multiplied by its load over its capacity: expectation-maximisation of the dual.
    """
    names = list(flows)
    edges = sorted({edge for flow in names for edge in flows[flow]})
    weight = np.array([[flows[flow].get(edge, 0.0) for edge in edges] for flow in names])
    most = np.array([capacity[edge] for edge in edges])
    price = len(names) / most
    for _ in range(3000):
        load = (weight.T @ (1 / (weight @ price))) / most
        price = price * load
        if np.abs(price * most * (load - 1)).max() < 1e-6:
            break
    rate = 1 / (weight @ price)
    over = (weight.T @ rate / most)[None, :] * (weight > 0)
    return dict(zip(names, (rate / np.maximum(over.max(axis=1), 1.0)).tolist(), strict=True))


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
        rate = proportional(flows, capacity) if flows else {}
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
