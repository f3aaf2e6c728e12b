"""Detection of the slowest rank in compute, and of the host with the slow link, from a trace."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.collective.named import collective_flows
from wirewise.cost.traces import CLEARLY_FASTER, hosts_of, probed_rates
from wirewise.sim.breakdown import union_s
from wirewise.trace.match import match, transfer_starts
from wirewise.trace.records import Trace
from wirewise.trace.segments import own_work

__all__ = [
    "Straggler",
    "compute_seconds",
    "find_slow_host",
    "find_straggler",
    "find_uneven",
    "processor_seconds",
]

_COMPUTE = ("forward", "backward", "optimizer", "encode", "decode", "other")
_LEAST_SHARE = 0.05
"""Ranks are never alike; less than this share more compute is no straggler."""
_DEVIATIONS = 3.0
_LEAST_TRANSFERS = 3
_LEAST_FACTOR = 1.5


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """Rank that computes longest."""

    rank: int
    compute_s: float
    """Compute time of a step in seconds, median over steps."""
    others_s: float
    """Median compute time of the other ranks, in seconds."""

    cause: str = "compute"
    """Cause: "compute", "preempted" (others ran on its CPU) or "blocked" (it slept, read or waited for a lock);
    "compute" if the trace does not show it."""
    preempted_s: float = 0.0
    """Seconds of a step in which it was runnable without a CPU, mean over steps; 0 if none or unknown."""

    @property
    def factor(self) -> float:
        """Compute time relative to the other ranks."""
        return self.compute_s / self.others_s


def compute_seconds(trace: Trace) -> NDArray[np.float64]:
    """Compute time of each rank in each common step, in seconds, [ranks, steps]."""
    place = {number: i for i, number in enumerate(trace.steps())}
    found = np.zeros((trace.world_size, len(place)))
    for rank, recorded in enumerate(trace.ranks):
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for number, piece in own_work(recorded.ops):
            if piece.op.kind in _COMPUTE and number in place:
                spans[number].append((piece.start_s, piece.end_s))
        for number, own in spans.items():
            found[rank, place[number]] = union_s(np.array(own))
    return found


def find_straggler(trace: Trace, seconds: NDArray[np.float64] | None = None) -> Straggler | None:
    """Find the rank whose compute exceeds the median of the others by more than their spread. None if there is none.

    The excess must be above the spread of the other ranks, above the noise between steps, and above 5 %.

    Args:
        trace: Trace on aligned clocks.
        seconds: Result of `compute_seconds` for it, if known.
    """
    seconds = compute_seconds(trace) if seconds is None else seconds
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
    cause, preempted_s = _cause(trace, rank, float(middle[rank]) / usual, usual)
    return Straggler(
        rank=rank, compute_s=float(middle[rank]), others_s=usual, cause=cause, preempted_s=preempted_s
    )


def processor_seconds(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Mean CPU time of each rank's script thread per step, and its run-queue wait, in seconds. None if not recorded."""
    steps = set(trace.steps())
    marks = [[op for op in rank.ops if op.kind == "step" and op.step in steps] for rank in trace.ranks]
    if not all(own and all(op.cpu_s >= 0 and op.preempted_s >= 0 for op in own) for own in marks):
        return None
    cpu = [float(np.mean([op.cpu_s for op in own])) for own in marks]
    return np.array(cpu), np.array([float(np.mean([op.preempted_s for op in own])) for own in marks])


def find_uneven(seconds: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Ranks with the number of steps in which each computes longest, descending, if compute is uneven within steps.

    Args:
        seconds: Result of `compute_seconds`.
    """
    if len(seconds) < 2 or not seconds.size or not (mean := seconds.mean(axis=0)).all():
        return []
    if float(np.mean(seconds.max(axis=0) / mean)) < 1 + _LEAST_SHARE:
        return []
    ranks, counts = np.unique(seconds.argmax(axis=0), return_counts=True)
    return sorted(zip(ranks.tolist(), counts.tolist(), strict=True), key=lambda row: -row[1])


def _cause(trace: Trace, rank: int, factor: float, others_s: float) -> tuple[str, float]:
    """Why a rank takes `factor` times as long as the others, and seconds of a step that it waits for a processor."""
    spent = processor_seconds(trace)
    if spent is None:
        return "compute", 0.0
    (cpu, usual_cpu), (waited, usual_wait) = ((own[rank], np.median(np.delete(own, rank))) for own in spent)
    # Who computes more also waits more for a processor where these are scarce.
    if cpu >= usual_cpu * (1 + 0.5 * (factor - 1)):
        return "compute", float(waited)
    blocked_s = (factor - 1) * others_s - max(cpu - usual_cpu, 0.0) - max(waited - usual_wait, 0.0)
    return ("preempted" if waited - usual_wait >= blocked_s else "blocked"), float(waited)


def find_slow_host(trace: Trace) -> str | None:
    """Find the host with the largest time per byte of transfers. None if the trace does not reveal it.

    Based on transfers with and without the host, at least three of each. A collective of all hosts runs at the pace
    of the slowest link and does not reveal which one that is; then probe blocks between single hosts are used, or
    else the rates in the headers.
    """
    names = list(dict.fromkeys(rank.header.host for rank in trace.ranks))
    slower = _factors(trace, len(names))
    if slower and max(slower.values()) >= _LEAST_FACTOR:
        return names[max(slower, key=slower.__getitem__)]
    if len(names) > 2 and (probed := probed_rates(trace)) is not None:
        worse = np.minimum(*probed)
        slowest = int(np.argmin(worse))
        usual = float(np.median(np.delete(worse, slowest)))
        return names[slowest] if usual >= CLEARLY_FASTER * worse[slowest] else None
    rates = {r.header.host: r.header.link_bytes_per_s for r in trace.ranks if r.header.link_bytes_per_s > 0}
    if len(rates) < 2:
        return None
    narrow = min(rates, key=rates.__getitem__)
    others = [rate for host, rate in rates.items() if host != narrow]
    return narrow if float(np.median(others)) >= _LEAST_FACTOR * rates[narrow] else None


def _factors(trace: Trace, count: int) -> dict[int, float]:
    """Seconds per byte of transfers with each host over those without it, where both are known."""
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
    matches = match(trace)
    rows = []
    for one, start in zip(matches, transfer_starts(matches), strict=True):
        touched = hosts[list(one.ranks)].tolist()
        out: dict[int, float] = defaultdict(float)
        for source, target, size in collective_flows(one.collective, touched, one.size_bytes).flows:
            out[source] += size * (source != target)
        if max(out.values(), default=0.0) > 0 and one.end_s > start:
            rows.append((frozenset(touched), one.end_s - start, max(out.values())))
    return rows


def _deviation(values: NDArray[np.float64]) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
