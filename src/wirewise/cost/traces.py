"""Transfer times, host bandwidths and interference, from a trace of ordinary training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.named import ALGORITHMS, Flows, collective_flows
from wirewise.cost.interference import fit_interference
from wirewise.cost.messages import message_samples
from wirewise.cost.transfers import TransferCost, TransferSample, fit_transfers
from wirewise.trace.match import Match, match
from wirewise.trace.records import Op, Trace
from wirewise.trace.segments import OpPiece, own_work

__all__ = ["CLEARLY_FASTER", "host_rates", "hosts_of", "interference_of", "probed_rates", "transfers_of"]

Vector = NDArray[np.float64]

CLEARLY_FASTER = 1.3
"""Ratio of two rates below which single probe blocks cannot tell them apart."""

_ROUND_TRIPS = 3.0
"""A round of a collective has a library's work in it besides half a round trip."""

_LEAST_PIECE_S = 0.5e-3
"""Shorter pieces measure the clock and the scheduler more than interference."""

_SHARED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_COMPUTE = ("forward", "backward", "optimizer", "encode", "decode", "other")


def hosts_of(trace: Trace) -> NDArray[np.int32]:
    """Host number of each rank, in the order in which hosts appear, [ranks]."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(r.header.host, len(numbers)) for r in trace.ranks], dtype=np.int32)


def transfers_of(trace: Trace) -> tuple[TransferCost | None, TransferCost | None]:
    """Fit transfer times to the collectives and messages of an aligned trace, between hosts and inside them.

    Returns:
        None for either if the trace has no such transfers.

    Raises:
        InputError: A collective ends before its last rank joined, which means that clocks are not aligned.
    """
    hosts = hosts_of(trace)
    matches = match(trace)
    between, inside = message_samples(matches, hosts)
    seen = bool(between or inside)
    for one in matches:
        algorithm = one.ops[0].algorithm
        # One that was carried out by messages is known by these.
        if (
            one.collective not in _SHARED
            or one.step < 0
            or (algorithm and (seen or algorithm not in ALGORITHMS))
        ):
            continue
        of_ranks = hosts[list(one.ranks)].tolist()
        flows = collective_flows(one.collective, of_ranks, one.size_bytes, algorithm or "ring")
        sample = TransferSample(one.start_s, one.end_s, _busiest(flows), flows.rounds, one.collective)
        if any(a != b for a, b, _ in flows.flows):
            between.append(sample)
        elif flows.flows:
            inside.append(sample)
    most = _most_latency_s(trace)
    return (
        fit_transfers(between, most_latency_s=most) if between else None,
        fit_transfers(inside, most_latency_s=most) if inside else None,
    )


def host_rates(trace: Trace, narrowest: float) -> tuple[Vector, Vector] | None:
    """Bytes per second out of and into each host, [hosts] each, given the slowest link.

    Hosts for which `probed_rates` measured clearly more than for the slowest get that much more.

    Returns:
        Bandwidths out of and into each host. None if some host sent or received no probe block.
    """
    rates = probed_rates(trace)
    if rates is None:
        return None
    # A block may be late by chance, so a slow one alone makes no other link fast.
    least = max(narrowest, min(map(np.min, rates)))
    out, into = (narrowest * np.where(way >= CLEARLY_FASTER * least, way / least, 1.0) for way in rates)
    return out, into


def probed_rates(trace: Trace) -> tuple[Vector, Vector] | None:
    """Bytes per second out of and into each host, [hosts] each, by its fastest probe block (`Probe.size_bytes`).

    Returns:
        Bandwidths out of and into each host. None if some host sent or received no probe block.
    """
    hosts = hosts_of(trace)
    rates = np.zeros((2, int(hosts.max(initial=0)) + 1))
    for rank, recorded in enumerate(trace.ranks):
        for one in recorded.header.probes:
            if not one.size_bytes or hosts[rank] == hosts[one.peer] or one.received_s <= one.sent_s:
                continue
            rate = one.size_bytes / (one.received_s - one.sent_s)
            rates[0, hosts[rank]] = max(rates[0, hosts[rank]], rate)
            rates[1, hosts[one.peer]] = max(rates[1, hosts[one.peer]], rate)
    return (rates[0], rates[1]) if rates.all() else None


def _most_latency_s(trace: Trace) -> float:
    """A few of the longest of the shortest round trips between two ranks; infinite where none was made."""
    shortest: dict[tuple[int, int], float] = {}
    for recorded in trace.ranks:
        for one in recorded.header.probes:
            if one.size_bytes:
                continue
            key = (recorded.header.rank, one.peer)
            shortest[key] = min(one.received_s - one.sent_s, shortest.get(key, np.inf))
    return _ROUND_TRIPS * max(shortest.values()) if shortest else np.inf


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
    """Slowdown factor of compute that overlaps with communication, from an aligned trace (`fit_interference`).

    Returns:
        None if no op ran both with more and with less overlap.
    """
    busy = _busy(match(trace), trace.world_size)
    number: dict[tuple[int, str, str, int], int] = {}
    op, context, overlap, seconds = [], [], [], []
    for rank in range(trace.world_size):
        low, high = busy[rank]
        for place, one, count in _computing(trace.ranks[rank].ops):
            both = np.clip(np.minimum(high, one.end_s) - np.maximum(low, one.start_s), 0.0, None).sum()
            context.append(place * trace.world_size + rank)
            op.append(number.setdefault((rank, one.op.kind, one.op.name, count), len(number)))
            overlap.append(min(float(both) / (one.end_s - one.start_s), 1.0))
            seconds.append(one.end_s - one.start_s)
    return fit_interference(
        np.array(op, dtype=np.int64), np.array(overlap), np.array(seconds), np.array(context, dtype=np.int64)
    )


def _computing(ops: list[Op]) -> Iterator[tuple[int, OpPiece, int]]:
    """(step, piece of compute, how many pieces its op had before in the step)."""
    before: Counter[tuple[int, str, str]] = Counter()
    for step, piece in own_work(ops):
        if piece.op.kind in _COMPUTE and piece.end_s - piece.start_s >= _LEAST_PIECE_S:
            key = (step, piece.op.kind, piece.op.name)
            yield step, piece, before[key]
            before[key] += 1


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
