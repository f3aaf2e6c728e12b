"""Gradient buckets of a parallel plan, filled as in DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

from msgspec.structs import replace

from wirewise.plans.fusion import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from wirewise.plans.parallel import ParallelPlan
from wirewise.trace.operator_graph import OperatorGraph

__all__ = ["DDP_BYTES", "assign_buckets", "bucket_variants"]

DDP_BYTES = (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES)
"""Size of the first bucket of DistributedDataParallel, and of later ones, in bytes."""


def assign_buckets(
    plan: ParallelPlan, graph: OperatorGraph, first_bytes: int, other_bytes: int
) -> ParallelPlan:
    """Assign gradients to buckets, in the order in which they are computed.

    Args:
        plan: Plan with one stage and one microbatch.
        graph: Training step of the plan.
        first_bytes: Size of the first bucket of each mesh dimension, in bytes.
        other_bytes: Size of later buckets, in bytes.
    """
    ends = (len(graph.nodes) - 1,)
    alike: dict[tuple[int, str], list[int]] = {}
    for number, move in enumerate(plan.moves):
        if move.once and move.consumers == ends and [step.kind for step in move.steps] == ["all_reduce"]:
            key = (move.steps[0].mesh_dim, graph.nodes[move.producer].dtype)
            alike.setdefault(key, []).append(number)
    found = list[tuple[int, ...]]()
    for numbers in alike.values():
        limits = chain((first_bytes,), repeat(other_bytes))
        bucket, size, limit = list[int](), 0, next(limits)
        for number in sorted(numbers, key=lambda one: plan.moves[one].producer):
            bucket.append(number)
            size += plan.moves[number].steps[0].size_bytes
            if size >= limit:
                found.append(tuple(bucket))
                bucket, size, limit = [], 0, next(limits)
        found += [tuple(bucket)] if bucket else []
    return replace(plan, buckets=tuple(one for one in found if len(one) > 1))


def bucket_variants(plan: ParallelPlan, graph: OperatorGraph) -> Iterator[ParallelPlan]:
    """Yield the plan with unbucketed gradients, with buckets of 1 MiB, and with those of DistributedDataParallel."""
    yield plan
    if plan.stages == 1 and plan.microbatches == 1:
        yield assign_buckets(plan, graph, DDP_BYTES[0], DDP_BYTES[0])
        yield assign_buckets(plan, graph, *DDP_BYTES)
