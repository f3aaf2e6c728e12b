"""Ops of a step under a decision, individually or coarsened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wirewise.errors import InputError
from wirewise.sim.data_parallel import BucketTransfer, LayerCost
from wirewise.trace.modules import BucketSpan, ModuleTrace

__all__ = [
    "BucketPart",
    "Decision",
    "StepSegments",
    "group_s",
    "groups_of",
    "layers",
    "micro_share",
    "one_op_a_launch",
    "recompute_s",
    "segments",
    "transfers",
]


@dataclass(frozen=True)
class Decision:
    """Choice for every pass; `ModuleTrace` explains the numbers."""

    buckets: tuple[BucketSpan, ...]
    """All gradients in order."""
    fused: tuple[tuple[int, int], ...] = ()
    """First and last module of each fused op, in the order of the modules."""
    precision: str = "float32"
    recompute: frozenset[int] = frozenset()
    """Modules whose forward pass is recomputed."""
    accumulation: int = 1


class BucketPart(NamedTuple):
    """Backward ops up to a bucket's last gradient, and the bucket."""

    compute_s: float
    size_bytes: float
    chunks: int


class StepSegments(NamedTuple):
    """Coarsened step; times are those of a rank with slowdown 1."""

    forward_s: float
    """Seconds before the backward ops whose gradients are reduced."""
    parts: tuple[BucketPart, ...]
    tail_s: float
    """Seconds after the last gradient of the last bucket."""


def groups_of(job: ModuleTrace, decision: Decision) -> list[tuple[int, int]]:
    """First and last module of every op, in forward order."""
    by_first, found, first = dict(decision.fused), [], 0
    while first < len(job.modules):
        found.append((first, by_first.get(first, first)))
        first = found[-1][1] + 1
    return found


def group_s(job: ModuleTrace, first: int, last: int, precision: str) -> tuple[float, float] | None:
    """Forward and backward seconds of modules fused into one op. None if unknown."""
    members = job.modules[first : last + 1]
    alone = [m.bfloat16_s or (m.forward_s, m.backward_s) for m in members]
    if precision == "float32":
        alone = [(m.forward_s, m.backward_s) for m in members]
    if first == last:
        return alone[0]
    if (first, last) in job.fused_s:
        measured = job.fused_s[first, last]
        whole = sum(m.forward_s for m in members), sum(m.backward_s for m in members)
        # What bfloat16 gains is taken to be the same when fused.
        forward, backward = (
            seconds * sum(pair[i] for pair in alone) / max(whole[i], 1e-30) if whole[i] > 0 else seconds
            for i, seconds in enumerate(measured)
        )
        return forward, backward
    if job.fused_share is None:
        return None
    forward, backward = (job.fused_share * sum(pair[i] for pair in alone[:-1]) + alone[-1][i] for i in (0, 1))
    return forward, backward


def micro_share(job: ModuleTrace, decision: Decision) -> float:
    """Time of an op in a micro-step, as a fraction of that for the whole batch."""
    return job.fixed_share + (1.0 - job.fixed_share) / decision.accumulation


def recompute_s(job: ModuleTrace, decision: Decision, first: int, last: int) -> float:
    """Forward seconds recomputed in the backward pass of modules first to last."""
    chosen = [i for i in range(first, last + 1) if i in decision.recompute]
    return sum((group_s(job, i, i, decision.precision) or (0.0, 0.0))[0] for i in chosen)


def layers(job: ModuleTrace, decision: Decision) -> list[LayerCost]:
    """Ops in forward order; micro-steps before the last are part of the first op's forward."""
    micro = micro_share(job, decision)
    found = []
    for first, last in groups_of(job, decision):
        seconds = group_s(job, first, last, decision.precision)
        if seconds is None:
            names = f"{job.modules[first].name!r} to {job.modules[last].name!r}"
            raise InputError(
                f"modules {names} as one op were not measured; set fused_share or add to fused_s"
            )
        backward = seconds[1] + recompute_s(job, decision, first, last)
        size = sum(m.gradient_bytes for m in job.modules[first : last + 1])
        found.append(LayerCost(job.modules[first].name, micro * seconds[0], micro * backward, size))
    if decision.accumulation > 1:
        before = (decision.accumulation - 1) * sum(layer.forward_s + layer.backward_s for layer in found)
        found[0] = found[0]._replace(forward_s=found[0].forward_s + before)
    return found


def one_op_a_launch(
    ops: Sequence[LayerCost], sent: Sequence[BucketTransfer]
) -> tuple[list[LayerCost], list[BucketTransfer]]:
    """Merge all ops between two launches into one layer, with the buckets that follow."""
    backward = [layer.backward_s for layer in reversed(ops)]
    parts, moved, done = list[LayerCost](), list[BucketTransfer](), 0
    for number, one in enumerate(sent):
        seconds = sum(backward[done : one.place + 1])
        parts.append(LayerCost(f"part {number}", 0.0, seconds, one.size_bytes))
        moved.append(one._replace(place=number))
        done = max(done, one.place + 1)
    parts.append(LayerCost("rest", sum(layer.forward_s for layer in ops), sum(backward[done:]), 0.0))
    return parts[::-1], moved


def transfers(job: ModuleTrace, decision: Decision) -> list[BucketTransfer]:
    """Buckets, each at the op that completes its last gradient."""
    groups = groups_of(job, decision)
    place = {i: len(groups) - 1 - g for g, (first, last) in enumerate(groups) for i in range(first, last + 1)}
    return [
        BucketTransfer(place[job.gradients[span.last]], job.size_of(span), span.chunks)
        for span in decision.buckets
    ]


def segments(job: ModuleTrace, decision: Decision) -> StepSegments:
    """Coarsened step, with all ops between two launches merged."""
    sent = transfers(job, decision)
    (rest, *computed), _ = one_op_a_launch(layers(job, decision), sent)
    parts = [
        BucketPart(op.backward_s, b.size_bytes, b.chunks)
        for op, b in zip(reversed(computed), sent, strict=True)
    ]
    return StepSegments(rest.forward_s, tuple(parts), rest.backward_s)
