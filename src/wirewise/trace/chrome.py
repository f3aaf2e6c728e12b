"""Traces in the JSON format of Chrome's trace viewer and Perfetto.

One process per rank and one row per thread; overlapping communications have separate rows. An arrow leads from the
last rank to arrive at a collective to the ends on all others. Data that `read` needs to restore the trace is in
`args` and `otherData`.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from wirewise.errors import TraceError
from wirewise.files import atomic_file
from wirewise.trace.arrays import Dataflow
from wirewise.trace.files import checked
from wirewise.trace.match import match
from wirewise.trace.profiles import read_json
from wirewise.trace.records import KINDS, Op, RankTrace, Trace

__all__ = ["dumps", "places", "read", "save"]

_TAG = "wirewise"
_MICRO = 1e6
_CRITICAL = "critical path"


def places(trace: Trace, flow: Dataflow, ops: Sequence[int]) -> set[tuple[int, int]]:
    """Traced ops represented by ops of a graph, as (rank, index in its list).

    Args:
        trace: Trace from which the graph was built.
        flow: Dataflow graph of the trace.
        ops: Indices of its ops, such as those of a critical path. An op without a rank represents those of all ranks.
    """
    known: dict[tuple[int, int, str, str], list[int]] = {}
    for rank, recorded in enumerate(trace.ranks):
        for place, op in enumerate(recorded.ops):
            known.setdefault((rank, op.step, op.kind, op.name), []).append(place)
    found = set()
    for number in ops:
        rank, step, kind = int(flow.rank[number]), int(flow.step[number]), KINDS[flow.kind[number]]
        names = flow.member_ops[number] if flow.member_ops else [flow.names[number]]
        for own in range(trace.world_size) if rank < 0 else (rank,):
            for name in names:
                found |= {(own, place) for place in known.get((own, step, kind, name), [])}
    return found


def dumps(trace: Trace, *, critical: Collection[tuple[int, int]] = ()) -> bytes:
    """Format a trace as JSON.

    Args:
        trace: Trace, aligned if ranks are to be compared.
        critical: Ops on the critical path, as (rank, index in its list).

    Raises:
        TraceError: Raised by `match`.
    """
    zero = min((op.start_s for rank in trace.ranks for op in rank.ops), default=0.0)
    rows = [_Rows(rank.ops) for rank in trace.ranks]
    events: list[dict[str, Any]] = []
    for number, rank in enumerate(trace.ranks):
        events += _names(number, rank, rows[number])
        for place, op in enumerate(rank.ops):
            events.append(_event(number, op, rows[number].tid(place), zero, (number, place) in critical))
    events += _arrows(trace, rows, zero)
    head = {
        "format": 1,
        "aligned": trace.aligned,
        "offsets": trace.offsets,
        "notes": trace.notes,
        "headers": [rank.header for rank in trace.ranks],
        "complete": [rank.complete for rank in trace.ranks],
    }
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {_TAG: head}})


def save(trace: Trace, path: str | os.PathLike[str], *, critical: Collection[tuple[int, int]] = ()) -> None:
    """Write `dumps` to a file, compressed if its name ends with .gz.

    Raises:
        TraceError: Raised by `dumps`, or the file is not writable.
    """
    text = dumps(trace, critical=critical)
    with atomic_file(path, error=TraceError) as file:
        file.write(gzip.compress(text, mtime=0) if Path(path).suffix == ".gz" else text)


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a file written by `save`, which restores an equal trace.

    Raises:
        TraceError: The file is unreadable, or not from `save`.
    """
    whole = read_json(path)
    try:
        head = whole["otherData"][_TAG]
        ops: list[list[Op]] = [[] for _ in head["headers"]]
        for event in whole["traceEvents"]:
            if event["ph"] == "X":
                ops[event["pid"]].append(checked(msgspec.convert(event["args"]["op"], Op)))
        head["ranks"] = [
            {"header": header, "ops": own, "complete": complete}
            for header, own, complete in zip(head["headers"], ops, head["complete"], strict=True)
        ]
        return msgspec.convert(head, Trace)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, OverflowError) as cause:
        raise TraceError(
            f"{path} was not exported by wirewise ({type(cause).__name__}: {cause}); read traces of torch.profiler "
            "with `wirewise.trace.kineto`"
        ) from cause


class _Rows:
    """The row of each op of a rank; ops of one row are nested or apart, as viewers need."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.of: list[tuple[str, int]] = [("", 0)] * len(ops)
        ends: dict[tuple[str, int], list[float]] = {}
        for place in sorted(range(len(ops)), key=lambda i: (ops[i].start_s, -ops[i].end_s)):
            self.of[place] = _free_row(ops[place], ends)
        first = {"steps": 0, "main": 1, "comm": 2}
        ordered = sorted(set(self.of), key=lambda row: (first.get(row[0], 3), row))
        self.number = {row: number for number, row in enumerate(ordered)}

    def tid(self, place: int) -> int:
        return self.number[self.of[place]]


def _free_row(op: Op, ends: dict[tuple[str, int], list[float]]) -> tuple[str, int]:
    """The first row of the op's thread that takes it; `ends`: when the open ops of each row end."""
    thread, row = "steps" if op.kind == "step" else op.thread, 0
    while True:
        own = ends.setdefault((thread, row), [])
        while own and own[-1] <= op.start_s:
            own.pop()
        if not own or op.end_s <= own[-1]:
            own.append(op.end_s)
            return thread, row
        row += 1


def _names(number: int, rank: RankTrace, rows: _Rows) -> Iterator[dict[str, Any]]:
    def told(label: str, tid: int, key: str, value: str | int) -> dict[str, Any]:
        return {"ph": "M", "name": label, "pid": number, "tid": tid, "ts": 0, "args": {key: value}}

    yield told("process_name", 0, "name", f"rank {rank.header.rank} ({rank.header.host})")
    yield told("process_sort_index", 0, "sort_index", number)
    for (thread, row), tid in rows.number.items():
        yield told("thread_name", tid, "name", thread if row == 0 else f"{thread} ({row + 1})")
        yield told("thread_sort_index", tid, "sort_index", tid)


def _event(rank: int, op: Op, tid: int, zero: float, critical: bool) -> dict[str, Any]:
    event = {
        "ph": "X",
        "name": op.name,
        "cat": f"{op.kind},{_CRITICAL}" if critical else op.kind,
        "pid": rank,
        "tid": tid,
        "ts": (op.start_s - zero) * _MICRO,
        "dur": (op.end_s - op.start_s) * _MICRO,
        "args": {"op": op},
    }
    if critical:
        # A colour name of the viewer, red.
        event["cname"] = "terrible"
    return event


def _arrows(trace: Trace, rows: list[_Rows], zero: float) -> Iterator[dict[str, Any]]:
    """Arrows from the start of the last rank, or the sender, to the ends of the others."""
    where = {
        id(op): (r, rows[r].tid(i)) for r, rank in enumerate(trace.ranks) for i, op in enumerate(rank.ops)
    }
    number = 0
    for one in match(trace):
        starts = [i for i, _ in one.causes()]
        if not starts:
            continue
        source = max(starts, key=lambda i: one.ops[i].start_s)
        for target, op in enumerate(one.ops):
            if target == source:
                continue
            number += 1
            label = {"name": one.collective, "cat": "transfer", "id": number}
            for phase, end, at in (("s", one.ops[source], one.ops[source].start_s), ("f", op, op.end_s)):
                pid, tid = where[id(end)]
                arrow = {**label, "ph": phase, "pid": pid, "tid": tid, "ts": (at - zero) * _MICRO}
                # Bound to the op that encloses the time, not to the next one.
                yield {**arrow, "bp": "e"} if phase == "f" else arrow
