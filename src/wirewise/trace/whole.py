"""Replacement of collectives that threads executed by messages by single collectives."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

import msgspec

from wirewise.trace.records import Op, RankTrace, Trace

__all__ = ["collapse_algorithms"]


def collapse_algorithms(trace: Trace) -> Trace:
    """Remove the messages of all-reduces that a thread executed by one of `collective.named.ALGORITHMS`.

    The remaining collectives can be changed: another algorithm, other buckets, other ranks. The time of the thread's
    additions is lost.

    Args:
        trace: Trace as `profile.Tracer` records it, with `Tracer.collective`.
    """
    ranks = [RankTrace(rank.header, _of_rank(rank.ops), rank.complete) for rank in trace.ranks]
    return msgspec.structs.replace(trace, ranks=ranks)


def _of_rank(ops: list[Op]) -> list[Op]:
    from wirewise.collective.named import ALGORITHMS

    known = {(op.group, op.seq) for op in ops if op.kind == "communication" and op.algorithm in ALGORITHMS}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for op in ops:
        if op.kind == "other" and (op.group, op.seq) in known:
            spans[op.thread].append((op.start_s, op.end_s))
    for own in spans.values():
        own.sort()

    def inside(op: Op) -> bool:
        if op.algorithm or op.kind == "step":
            return False
        own = spans.get(op.caller if op.kind == "communication" else op.thread, [])
        place = bisect_right(own, (op.start_s, float("inf"))) - 1
        return place >= 0 and op.end_s <= own[place][1]

    return [op for op in ops if not inside(op)]
