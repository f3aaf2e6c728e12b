"""Small changes of a decision, as tried by the searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.rules import MOST_CHUNKS, best_chunks, stages
from wirewise.sim.modules import Decision, group_s, groups_of
from wirewise.trace.modules import BucketSpan

__all__ = ["PASSES", "neighbours"]

PASSES = ("op_fusion", "tensor_fusion", "partition", "precision", "recompute", "accumulation")
"""Passes that a search may apply."""

_SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)
_SPLITS = 7


def neighbours(
    problem: FusionProblem, decision: Decision, passes: Sequence[str], first: int = 0
) -> Iterator[Decision]:
    """Enumerate decisions that differ in one bucket, one bucket boundary, or one fused op.

    Args:
        problem: Modules and links.
        decision: Decision to begin with.
        passes: Changes to make, among "tensor_fusion", "partition" and "op_fusion".
        first: First bucket to change; earlier ones end early enough.
    """
    first = min(first, len(decision.buckets) - 1)
    if "tensor_fusion" in passes:
        yield from (replace(decision, buckets=b) for b in _tensor_fusion(problem, decision.buckets, first))
    if "partition" in passes:
        yield from (replace(decision, buckets=b) for b in _partition(problem, decision.buckets, first))
    if "op_fusion" in passes:
        yield from _op_fusion(problem, decision)


def _tensor_fusion(
    problem: FusionProblem, buckets: tuple[BucketSpan, ...], first: int
) -> Iterator[tuple[BucketSpan, ...]]:
    """Merge, split, move a border."""
    for i in range(first, len(buckets)):
        own = buckets[i]
        if i + 1 < len(buckets):
            after = buckets[i + 1]
            yield (
                *buckets[:i],
                BucketSpan(own.first, after.last, max(own.chunks, after.chunks)),
                *buckets[i + 2 :],
            )
            for shift in _SHIFTS:
                border = own.last + shift
                if own.first <= border < after.last:
                    moved = own._replace(last=border), after._replace(first=border + 1)
                    yield (*buckets[:i], *moved, *buckets[i + 2 :])
        for border in _split_points(problem, own):
            parts = own._replace(last=border), own._replace(first=border + 1)
            yield (*buckets[:i], *parts, *buckets[i + 1 :])


def _split_points(problem: FusionProblem, span: BucketSpan) -> list[int]:
    """Gradients after which a bucket may be cut: all of a small one, else at equal shares of its bytes."""
    if span.last - span.first <= _SPLITS:
        return list(range(span.first, span.last))
    done = np.cumsum(problem.sizes[span.first : span.last + 1])
    shares = np.arange(1, _SPLITS + 1) / (_SPLITS + 1)
    found = span.first + np.searchsorted(done, shares * done[-1])
    return sorted({min(int(i), span.last - 1) for i in found})


def _partition(
    problem: FusionProblem, buckets: tuple[BucketSpan, ...], first: int
) -> Iterator[tuple[BucketSpan, ...]]:
    """Twice and half as many chunks, one more and one less, and k*."""
    if problem.comm_slots == 1 and not problem.overhead.has_stages:
        return
    through = stages(problem)
    for i in range(first, len(buckets)):
        k, size = buckets[i].chunks, problem.size_of(buckets[i])
        for chunks in sorted({2 * k, k // 2, k + 1, k - 1, best_chunks(size, through)} - {k}):
            if 1 <= chunks <= min(MOST_CHUNKS, size):
                yield (*buckets[:i], buckets[i]._replace(chunks=chunks), *buckets[i + 1 :])


def _op_fusion(problem: FusionProblem, decision: Decision) -> Iterator[Decision]:
    """Fuse two neighbours, with their buckets apart and as one; split a fused op into what it was made of."""
    for group in decision.fused:
        yield replace(decision, fused=tuple(one for one in decision.fused if one != group))
    groups = groups_of(problem, decision)
    for before, after in pairwise(groups):
        joint = (before[0], after[1])
        if group_s(problem, *joint, decision.precision) is None:
            continue
        rest = {one for one in decision.fused if one not in (before, after)}
        fused = replace(decision, fused=tuple(sorted({*rest, joint})))
        yield fused
        coupled = _coupled(problem, decision.buckets, joint)
        if coupled != decision.buckets:
            yield replace(fused, buckets=coupled)


def _coupled(
    problem: FusionProblem, buckets: tuple[BucketSpan, ...], op: tuple[int, int]
) -> tuple[BucketSpan, ...]:
    """Buckets with all that hold gradients of the op as one."""
    own = [g for g, module in enumerate(problem.gradients) if op[0] <= module <= op[1]]
    touched = [i for i, b in enumerate(buckets) if own and b.first <= own[-1] and b.last >= own[0]]
    if len(touched) < 2:
        return buckets
    low, high = touched[0], touched[-1]
    chunks = max(b.chunks for b in buckets[low : high + 1])
    return (*buckets[:low], BucketSpan(buckets[low].first, buckets[high].last, chunks), *buckets[high + 1 :])
