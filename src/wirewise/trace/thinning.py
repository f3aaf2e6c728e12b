"""Subsampling of the steps of large traces."""

from __future__ import annotations

import msgspec
import numpy as np

from wirewise.trace.records import Op, RankTrace, Trace

__all__ = ["MOST_OPS", "thin_steps"]

MOST_OPS = 150_000
"""Maximum number of ops that commands replay."""


def thin_steps(trace: Trace, most_ops: int = MOST_OPS) -> Trace:
    """Select steps evenly until the trace has at most the given number of ops.

    Links and clocks are those of the whole run if its headers state them, else those of the selected steps.

    Args:
        trace: Trace of any ranks and steps.
        most_ops: Maximum number of ops of all ranks; at least one step is kept.
    """
    numbers = trace.steps()
    total = sum(len(rank.ops) for rank in trace.ranks)
    count = max(1, int(len(numbers) * most_ops / max(total, 1)))
    if total <= most_ops or count >= len(numbers):
        return trace
    places = np.unique(np.linspace(0, len(numbers) - 1, count).round().astype(int))
    kept = {numbers[place] for place in places}
    many = f"{len(kept)} of {len(numbers)} steps"
    note = f"{many} are replayed, spread evenly over the run, as the trace has {total:,} ops"
    ranks = [RankTrace(rank.header, _of_steps(rank, kept), rank.complete) for rank in trace.ranks]
    return msgspec.structs.replace(trace, ranks=ranks, notes=[*trace.notes, note])


def _of_steps(rank: RankTrace, kept: set[int]) -> list[Op]:
    """Ops of these steps, and waits of other steps for their collectives."""
    keys = {(op.group, op.seq) for op in rank.ops if op.kind == "communication" and op.step in kept}
    return [
        op
        for op in rank.ops
        if op.step in kept or (op.kind == "wait" and op.seq >= 0 and (op.group, op.seq) in keys)
    ]
