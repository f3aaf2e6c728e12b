"""A trace cut into its steps, so that work on one step does not look through all others."""

from __future__ import annotations

from collections import defaultdict

from wirewise.trace.records import Op, RankTrace, Trace

__all__ = ["split"]


def split(trace: Trace) -> dict[int, Trace]:
    """For each step that all ranks have: its ops, and waits of other steps for its collectives."""
    numbers = trace.steps()
    found: dict[int, list[RankTrace]] = {number: [] for number in numbers}
    for rank in trace.ranks:
        ops: dict[int, list[Op]] = defaultdict(list)
        waits: dict[tuple[str, int], list[Op]] = defaultdict(list)
        for op in rank.ops:
            ops[op.step].append(op)
            if op.kind == "wait" and op.seq >= 0:
                waits[op.group, op.seq].append(op)
        for number in numbers:
            own = ops[number]
            keys = dict.fromkeys((op.group, op.seq) for op in own if op.kind == "communication")
            later = [op for key in keys for op in waits.get(key, []) if op.step != number]
            found[number].append(RankTrace(rank.header, own + later, rank.complete))
    return {number: Trace(ranks=ranks, aligned=trace.aligned) for number, ranks in found.items()}
