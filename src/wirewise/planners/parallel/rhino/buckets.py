"""Gradients that travel together: sums of all ranks in buckets, as DistributedDataParallel has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

from msgspec.structs import replace

from wirewise.plans.fusion import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from wirewise.plans.parallel import ParallelPlan
from wirewise.trace.operator_graph import OperatorGraph

__all__ = ["DDP_BYTES", "bucketed", "in_buckets"]

DDP_BYTES = (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES)
"""Bytes of the first bucket of DistributedDataParallel, and of the others."""


def in_buckets(plan: ParallelPlan, graph: OperatorGraph, first_bytes: int, other_bytes: int) -> ParallelPlan:
    """The plan with its gradients in buckets, in the order in which they are made.

    Args:
        plan: Plan of one stage and one microbatch.
        graph: Training step that it was made for.
        first_bytes: A first bucket of each dimension of the mesh is full with so many bytes.
        other_bytes: Later ones are full with so many.
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


def bucketed(plan: ParallelPlan, graph: OperatorGraph) -> Iterator[ParallelPlan]:
    """The plan with its gradients one by one, in buckets of 1 MiB, and in those of DistributedDataParallel."""
    yield plan
    if plan.stages == 1 and plan.microbatches == 1:
        yield in_buckets(plan, graph, DDP_BYTES[0], DDP_BYTES[0])
        yield in_buckets(plan, graph, *DDP_BYTES)
