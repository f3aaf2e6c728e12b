"""Which rank computes longer than the others, and which host has the slow link, as a trace tells."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.traces import hosts_of
from wirewise.sim.breakdown import union_s
from wirewise.trace.flows import collective_flows
from wirewise.trace.match import Match, match, slot_starts
from wirewise.trace.records import Trace

__all__ = ["Straggler", "compute_seconds", "find_slow_host", "find_straggler"]

_COMPUTE = ("forward", "backward", "optimizer", "encode", "decode", "other")
_LEAST_SHARE = 0.05
"""Ranks are never alike; less than this share more compute is no straggler."""
_DEVIATIONS = 3.0
_LEAST_TRANSFERS = 3
_LEAST_FACTOR = 1.5


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that computes longest."""

    rank: int
    compute_s: float
    """Median over steps."""
    others_s: float
    """Median of the other ranks."""

    @property
    def factor(self) -> float:
        """How many times as long as the others it computes."""
        return self.compute_s / self.others_s


def compute_seconds(trace: Trace) -> NDArray[np.float64]:
    """Seconds in which each rank computes, in each step that all have, [ranks, steps]."""
    place = {number: i for i, number in enumerate(trace.steps())}
    found = np.zeros((trace.world_size, len(place)))
    for rank, recorded in enumerate(trace.ranks):
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for op in recorded.ops:
            if op.kind in _COMPUTE and op.step in place:
                spans[op.step].append((op.start_s, op.end_s))
        for number, own in spans.items():
            found[rank, place[number]] = union_s(np.array(own))
    return found


def find_straggler(trace: Trace) -> Straggler | None:
    """The rank whose compute exceeds the median of the others by more than their spread, or none.

    The excess must be above the spread of the other ranks, above what steps that differ make of it by chance,
    and above 5 %.
    """
    seconds = compute_seconds(trace)
    if len(seconds) < 2 or not seconds.size:
        return None
    middle = np.median(seconds, axis=1)
    rank = int(np.argmax(middle))
    others = np.delete(seconds, rank, axis=0)
    more = seconds[rank] - np.median(others, axis=0)
    chance = _DEVIATIONS * _deviation(more) / np.sqrt(len(more))
    usual = float(np.median(np.delete(middle, rank)))
    least = max(_deviation(np.delete(middle, rank)), chance, _LEAST_SHARE * usual)
    if usual <= 0 or float(np.median(more)) <= least:
        return None
    return Straggler(rank=rank, compute_s=float(middle[rank]), others_s=usual)


def find_slow_host(trace: Trace) -> str | None:
    """The host with which transfers take longest a byte, or None where the trace cannot tell.

    Told by transfers with and without the host, at least three of each. A collective of all hosts runs at the
    pace of the slowest link and tells nothing of which one that is; then the rates that the headers name count.
    """
    names = list(dict.fromkeys(rank.header.host for rank in trace.ranks))
    slower = _factors(trace, len(names))
    if slower and max(slower.values()) >= _LEAST_FACTOR:
        return names[max(slower, key=slower.__getitem__)]
    rates = {r.header.host: r.header.link_bytes_per_s for r in trace.ranks if r.header.link_bytes_per_s > 0}
    if len(rates) < 2:
        return None
    slowest = min(rates, key=rates.__getitem__)
    others = [rate for host, rate in rates.items() if host != slowest]
    return slowest if float(np.median(others)) >= _LEAST_FACTOR * rates[slowest] else None


def _factors(trace: Trace, count: int) -> dict[int, float]:
    """Seconds a byte of transfers with each host over those without it, where both are known."""
    rows = _transfers(trace)
    found = {}
    for host in range(count):
        parts = [[row for row in rows if (host in row[0]) == inside] for inside in (True, False)]
        if min(map(len, parts)) >= _LEAST_TRANSFERS:
            inside, outside = (sum(s for _, s, _ in part) / sum(b for *_, b in part) for part in parts)
            found[host] = inside / outside if outside > 0 else np.inf
    return found


def _transfers(trace: Trace) -> list[tuple[frozenset[int], float, float]]:
    """Hosts, seconds and bytes on the busiest interface of each transfer between hosts."""
    hosts = hosts_of(trace)
    groups: dict[str, list[Match]] = defaultdict(list)
    for one in match(trace):
        # Messages between two ranks have numbers of their own, and no slots.
        groups[one.group if one.collective != "send" else ""].append(one)
    rows = []
    for group, ones in groups.items():
        starts = slot_starts(ones, ones[0].slots) if group else [one.start_s for one in ones]
        for one, start in zip(ones, starts, strict=True):
            flows = collective_flows(one.collective, hosts[list(one.ranks)].tolist(), one.size_bytes)
            out: dict[int, float] = defaultdict(float)
            for source, target, size in flows.flows:
                out[source] += size * (source != target)
            if max(out.values(), default=0.0) > 0 and one.end_s > start:
                touched = frozenset(hosts[list(one.ranks)].tolist())
                rows.append((touched, one.end_s - start, max(out.values())))
    return rows


def _deviation(values: NDArray[np.float64]) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
