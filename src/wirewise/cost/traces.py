"""Links and interference from a trace of ordinary training steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.interfaces import Links
from wirewise.cost.interference import fit_interference
from wirewise.cost.transfers import TransferSample, fit_transfers
from wirewise.trace.flows import Flows, collective_flows
from wirewise.trace.match import Match, match
from wirewise.trace.records import Trace

__all__ = ["fit_links", "hosts_of", "interference_of"]

LINK_EFFICIENCY = 0.957
"""Share of a link's rate that is left for the payload of TCP in frames of 1500 bytes."""

_SHARED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_COMPUTE = ("forward", "backward", "optimizer", "encode", "decode", "other")


def hosts_of(trace: Trace) -> NDArray[np.int32]:
    """Host number of each rank, in the order in which hosts appear, [ranks]."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(r.header.host, len(numbers)) for r in trace.ranks], dtype=np.int32)


def fit_links(trace: Trace) -> Links:
    """Rates and latencies that explain the collectives of an aligned trace (`fit_transfers`).

    A ring runs at the pace of its slowest link, so all hosts get the same rate, which is the effective one of
    the narrowest. Where no collective crosses hosts, the rate is `LINK_EFFICIENCY` of what the headers say,
    or unlimited.

    Raises:
        InputError: A collective that ends before its last rank came: the clocks are not aligned.
    """
    hosts = hosts_of(trace)
    between, inside = [], []
    for one in match(trace):
        if one.collective not in _SHARED or one.step < 0:
            continue
        flows = collective_flows(one.collective, hosts[list(one.ranks)].tolist(), one.size_bytes)
        sample = TransferSample(one.start_s, one.end_s, _busiest(flows), flows.rounds)
        if any(a != b for a, b, _ in flows.flows):
            between.append(sample)
        elif flows.flows:
            inside.append(sample)
    named = [r.header.link_bytes_per_s for r in trace.ranks if r.header.link_bytes_per_s > 0]
    rate, latency = (LINK_EFFICIENCY * min(named) if named else np.inf), 0.0
    if between:
        cost = fit_transfers(between)
        rate, latency = cost.bandwidth_bytes_per_s, cost.latency_s
    own = fit_transfers(inside) if inside else None
    return Links.uniform(
        int(hosts.max(initial=0)) + 1,
        rate,
        latency,
        intra_bytes_per_s=own.bandwidth_bytes_per_s if own else np.inf,
        intra_latency_s=own.latency_s if own else 0.0,
    )


def _busiest(found: Flows) -> float:
    """Bytes on the busiest interface: out of a host, into it, or inside where nothing crosses hosts."""
    load: dict[tuple[str, int], float] = {}
    crosses = any(a != b for a, b, _ in found.flows)
    for source, target, size in found.flows:
        ways = [("out", source), ("in", target)] if source != target else [("inside", source)] * (not crosses)
        for way in ways:
            load[way] = load.get(way, 0.0) + size
    return max(load.values(), default=0.0)


def interference_of(trace: Trace) -> float | None:
    """Factor by which compute slows down beside communication, from an aligned trace (`fit_interference`).

    Returns:
        None where no op ran both with more and with less communication beside it.
    """
    busy = _busy(match(trace), trace.world_size)
    number: dict[tuple[int, str, str], int] = {}
    op, context, overlap, seconds = [], [], [], []
    for rank, recorded in enumerate(trace.ranks):
        for one in recorded.ops:
            if one.kind not in _COMPUTE or one.step < 0 or one.end_s <= one.start_s:
                continue
            low, high = busy[rank]
            both = np.clip(np.minimum(high, one.end_s) - np.maximum(low, one.start_s), 0.0, None).sum()
            context.append(one.step * trace.world_size + rank)
            op.append(number.setdefault((rank, one.kind, one.name), len(number)))
            overlap.append(min(float(both) / (one.end_s - one.start_s), 1.0))
            seconds.append(one.end_s - one.start_s)
    return fit_interference(
        np.array(op, dtype=np.int64), np.array(overlap), np.array(seconds), np.array(context, dtype=np.int64)
    )


def _busy(matches: list[Match], ranks: int) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Starts and ends of disjoint times in which each rank communicates."""
    found = []
    for rank in range(ranks):
        spans: list[list[float]] = []
        for one in sorted((m for m in matches if rank in m.ranks), key=lambda m: m.start_s):
            if spans and one.start_s <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], one.end_s)
            else:
                spans.append([one.start_s, one.end_s])
        table = np.array(spans).reshape(-1, 2)
        found.append((table[:, 0], table[:, 1]))
    return found
