"""Breakdown of a step's time: compute, overlapped and exposed communication, waiting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.trace.dataflow import KINDS, Dataflow

__all__ = [
    "Breakdown",
    "break_down",
    "breakdown_of",
    "clip",
    "length",
    "mean_breakdown",
    "members",
    "overlap_share",
    "union",
    "union_s",
]

Vector = NDArray[np.float64]
Intervals = NDArray[np.float64]

_COMMUNICATION = KINDS.index("communication")
_IDLE = [KINDS.index(kind) for kind in ("communication", "wait", "step")]


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the mean rank's time in seconds; compute_s + exposed_communication_s + wait_s is the total."""

    compute_s: float
    """All time that is neither exposed communication nor waiting."""
    exposed_communication_s: float
    """Seconds in which a transfer runs and the rank does nothing else."""
    overlapped_communication_s: float
    """Seconds in which a transfer overlaps with compute; part of `compute_s`."""
    wait_s: float
    """Seconds in which neither runs: gaps, waiting for other ranks or for latecomers of a transfer."""


def break_down(
    dataflow: Dataflow, start_s: Vector, end_s: Vector, begin_s: Vector, until_s: Vector
) -> list[Breakdown]:
    """Divide the time of every rank from `begin_s` to `until_s`, both [ranks]."""
    found = []
    communication = _communication(dataflow, start_s, end_s)
    for rank in range(dataflow.ranks):
        low, high = begin_s[rank], until_s[rank]
        own = (dataflow.rank == rank) & ~np.isin(dataflow.kind, _IDLE)
        busy = clip(union(np.stack([start_s[own], end_s[own]], axis=1)), low, high)
        found.append(breakdown_of(busy, clip(communication[rank], low, high), float(high - low)))
    return found


def breakdown_of(busy: Intervals, moved: Intervals, seconds: float) -> Breakdown:
    """Breakdown of a rank's time from its disjoint compute and communication intervals, [k, 2] each."""
    compute = length(busy)
    both = float((_covered(moved, busy[:, 1]) - _covered(moved, busy[:, 0])).sum())
    exposed = max(length(moved) - both, 0.0)
    return Breakdown(
        compute_s=compute,
        exposed_communication_s=exposed,
        overlapped_communication_s=both,
        wait_s=max(seconds - compute - exposed, 0.0),
    )


def mean_breakdown(parts: Sequence[Breakdown], counts: Sequence[int] = ()) -> Breakdown:
    """Mean breakdown over ranks or steps; zeros if there are none.

    Args:
        parts: Breakdowns of ranks or of steps.
        counts: Number of ranks that each stands for; empty for one.
    """
    counts = counts or [1] * len(parts)
    whole = max(sum(counts), 1)
    return Breakdown(
        **{
            name: sum(many * getattr(one, name) for one, many in zip(parts, counts, strict=True)) / whole
            for name in Breakdown.__struct_fields__
        }
    )


def union_s(intervals: Intervals) -> float:
    """Total time covered by intervals, [k, 2], in seconds."""
    return length(union(intervals))


def overlap_share(dataflow: Dataflow, start_s: Vector, end_s: Vector) -> Vector:
    """Fraction of each op's time in which its rank communicates, in [0, 1], 0 for ops without a rank, [n]."""
    share = np.zeros(len(dataflow.names))
    communication = _communication(dataflow, start_s, end_s)
    for rank in range(dataflow.ranks):
        own = np.flatnonzero((dataflow.rank == rank) & (end_s > start_s))
        moving = _covered(communication[rank], end_s[own]) - _covered(communication[rank], start_s[own])
        share[own] = np.clip(moving / (end_s[own] - start_s[own]), 0.0, 1.0)
    return share


def members(dataflow: Dataflow) -> list[NDArray[np.int32]]:
    """Participating ranks of each communication op, empty for other ops.

    An op without a rank belongs to the ranks of its predecessors and successors, or to those of its hosts.
    """
    n = len(dataflow.names)
    shared = (dataflow.kind == _COMMUNICATION) & (dataflow.rank < 0)
    source = np.repeat(np.arange(n), np.diff(dataflow.indptr))
    target = dataflow.indices
    out = shared[source] & (dataflow.rank[target] >= 0)
    into = shared[target] & (dataflow.rank[source] >= 0)
    op = np.concatenate([source[out], target[into]])
    rank = np.concatenate([dataflow.rank[target[out]], dataflow.rank[source[into]]])
    pairs = np.unique(op * max(dataflow.ranks, 1) + rank)
    first = np.searchsorted(pairs, np.arange(n + 1) * max(dataflow.ranks, 1))
    found = []
    for i in range(n):
        if dataflow.kind[i] != _COMMUNICATION:
            found.append(np.zeros(0, dtype=np.int32))
        elif dataflow.rank[i] >= 0:
            found.append(dataflow.rank[i : i + 1])
        elif first[i + 1] > first[i]:
            found.append((pairs[first[i] : first[i + 1]] % dataflow.ranks).astype(np.int32))
        else:
            part = slice(dataflow.flow_indptr[i], dataflow.flow_indptr[i + 1])
            hosts = np.union1d(dataflow.flow_src[part], dataflow.flow_dst[part])
            found.append(np.flatnonzero(np.isin(dataflow.hosts, hosts)).astype(np.int32))
    return found


def _communication(dataflow: Dataflow, start_s: Vector, end_s: Vector) -> list[Intervals]:
    """When each rank communicates: disjoint intervals in order, [k, 2] for each rank."""
    belongs = members(dataflow)
    runs = [op for op in np.flatnonzero(end_s > start_s).tolist() if len(belongs[op])]
    rank = np.concatenate([belongs[op] for op in runs]) if runs else np.zeros(0, dtype=np.int32)
    op = np.repeat(np.array(runs, dtype=np.int64), [len(belongs[i]) for i in runs])
    return [
        union(np.stack([start_s[op[rank == r]], end_s[op[rank == r]]], axis=1)) for r in range(dataflow.ranks)
    ]


def union(intervals: Intervals) -> Intervals:
    """Merge intervals into disjoint ones that cover the same time, ascending, [m, 2].

    Args:
        intervals: Intervals in any order, [k, 2].
    """
    if not len(intervals):
        return intervals
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    until = np.maximum.accumulate(ordered[:, 1])
    opens = np.concatenate([[True], ordered[1:, 0] > until[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return np.stack([ordered[opens, 0], until[closes]], axis=1)


def clip(intervals: Intervals, low: float, high: float) -> Intervals:
    """Clip intervals, [k, 2], to the range from `low` to `high`."""
    return np.clip(intervals, low, max(low, high))


def length(intervals: Intervals) -> float:
    """Total length of disjoint intervals, [k, 2], in seconds."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _covered(intervals: Intervals, times: Vector) -> Vector:
    """Seconds of disjoint intervals before each time."""
    if not len(intervals):
        return np.zeros(len(times))
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    place = np.searchsorted(intervals[:, 0], times, side="right")
    inside = np.minimum(times - intervals[np.maximum(place - 1, 0), 0], lengths[np.maximum(place - 1, 0)])
    inside_s: Vector = before[np.maximum(place - 1, 0)] + np.where(place > 0, inside, 0.0)
    return inside_s
