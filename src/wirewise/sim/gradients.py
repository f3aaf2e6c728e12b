"""Gradient buckets of a dataflow graph: found, removed, and replaced by others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wirewise.collective.named import collective_flows
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim.step_replay import replay
from wirewise.trace.dataflow import COLLECTIVES, Dataflow
from wirewise.trace.sketch import GraphSketch, SketchNode

__all__ = ["Gradients", "TransferRegion", "all_reduces"]

_ALL_REDUCE = COLLECTIVES.index("all_reduce")


def all_reduces(flow: Dataflow) -> list[int]:
    """All-reduce ops with a payload."""
    return np.flatnonzero((flow.collective == _ALL_REDUCE) & (flow.size_bytes > 0)).tolist()


class TransferRegion:
    """Communication ops of one transfer, and the other ops just before and after them."""

    def __init__(self, sketch: GraphSketch, followers: dict[int, list[int]], transfer: int) -> None:
        self.ops = {transfer}
        self.entries: list[tuple[int, int]] = []
        """Edges from an op of a rank into the region."""
        self.exits: list[tuple[int, int]] = []
        """Edges out of it to an op of a rank."""
        for edges, up in ((self.entries, True), (self.exits, False)):
            stack = [transfer]
            while stack:
                op = stack.pop()
                for other in sketch.nodes[op].after if up else followers[op]:
                    node = sketch.nodes[other]
                    if node.kind != "communication":
                        edges.append((other, op) if up else (op, other))
                    elif other not in self.ops and node.size_bytes <= 0:
                        self.ops.add(other)
                        stack.append(other)


class Gradients:
    """Dataflow graph without its gradient all-reduces; `put` inserts others.

    Args:
        flow: Step of data-parallel training with the same backward ops on all ranks.
        links: Links of its hosts, which determine the order of the ops.

    Raises:
        InputError: There are no buckets, or the ranks have different backward ops.
    """

    def __init__(self, flow: Dataflow, links: Links) -> None:
        self.sketch = GraphSketch.of(flow)
        start = replay(flow, links).start_s
        followers = self.sketch.followers()
        regions = {op: TransferRegion(self.sketch, followers, op) for op in all_reduces(flow)}
        old = sorted(
            (op for op, region in regions.items() if self._is_gradient(region)), key=lambda op: start[op]
        )
        self.backward = self._backward(flow.ranks, start)
        """Backward ops of each rank in their order, [ranks][k]."""
        if not old or len({len(ops) for ops in self.backward}) != 1:
            raise InputError(
                f"found {len(old)} all-reduces behind backward ops, and {[len(ops) for ops in self.backward]} "
                "backward ops on the ranks; other buckets need a trace of data-parallel training with the same "
                "ops on all ranks"
            )
        self._last = [_last_entry(self.sketch, regions[op], self.backward[0]) for op in old]
        self.sizes = _gradient_bytes(self.sketch, self.backward[0], old, self._last)
        """Bytes that each backward op of a rank completes, [k]; together those of the old buckets."""
        self.buckets = [
            (place, self.sketch.nodes[op].size_bytes) for place, op in zip(self._last, old, strict=True)
        ]
        """Old buckets in their order: place in `backward` of the last op that each waits for, and its bytes."""
        self._exits = [sorted({behind for _, behind in regions[op].exits}) for op in old]
        first = self.sketch.nodes[old[0]]
        self._resource, self._step = first.resource, first.step
        self._priority = min(self.sketch.nodes[op].priority for op in old)
        self._buckets = 0
        _remove(self.sketch, [op for bucket in old for op in regions[bucket].ops])

    def _is_gradient(self, region: TransferRegion) -> bool:
        entries = (_handed_over_by(self.sketch, before) for before, _ in region.entries)
        return any(self.sketch.nodes[before].kind == "backward" for before in entries)

    def _backward(self, ranks: int, start: np.ndarray) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(ranks)]
        for op, node in self.sketch.nodes.items():
            if node.kind == "backward" and node.rank >= 0:
                found[node.rank].append(op)
        return [sorted(own, key=lambda op: (start[op], op)) for own in found]

    def put(self, index: int, size_bytes: float, *, chunks: int = 1, algorithm: str = "ring") -> None:
        """Add the next bucket.

        Args:
            index: Index of the backward op that completes its last gradient, in `backward` of each rank.
            size_bytes: Size of its gradients, in bytes.
            chunks: Number of equal collectives for it.
            algorithm: Algorithm of these all-reduces (`collective.named`).
        """
        waits = next(
            (e for e, end in zip(self._exits, self._last, strict=True) if end >= index), self._exits[-1]
        )
        size = size_bytes / chunks
        flows, rounds = collective_flows("all_reduce", self.sketch.hosts, size, algorithm)
        for chunk in range(chunks):
            part = f" chunk {chunk}" if chunks > 1 else ""
            node = SketchNode(
                f"bucket {self._buckets}{part}", "communication", size_bytes=size, flows=list(flows)
            )
            node.rounds, node.collective, node.resource = rounds, "all_reduce", self._resource
            node.step, node.priority = self._step, self._priority
            node.after = {ops[index] for ops in self.backward}
            made = self.sketch.add(node)
            for op in waits:
                self.sketch.nodes[op].after.add(made)
            self._priority += 1
        self._buckets += 1


def _last_entry(sketch: GraphSketch, region: TransferRegion, backward: list[int]) -> int:
    """Place of the last backward op of a rank that a transfer waits for."""
    place = {op: i for i, op in enumerate(backward)}
    entries = [_handed_over_by(sketch, before) for before, _ in region.entries]
    return max((place[before] for before in entries if before in place), default=-1)


def _handed_over_by(sketch: GraphSketch, op: int) -> int:
    """The op of the same thread that ended where a mark stands; graphs of traces have marks, others none."""
    while True:
        node = sketch.nodes[op]
        before = [b for b in node.after if node.resource and sketch.nodes[b].resource == node.resource]
        if node.kind != "other" or node.duration_s > 0 or len(before) != 1:
            return op
        op = before[0]


def _gradient_bytes(sketch: GraphSketch, backward: list[int], old: list[int], last: list[int]) -> np.ndarray:
    """Bytes that each backward op of a rank completes; together those of the buckets."""
    known = np.array([sketch.nodes[op].gradient_bytes for op in backward])
    whole = sum(sketch.nodes[op].size_bytes for op in old)
    if known.sum() > 0:
        return known * (whole / known.sum())
    spread, first = np.zeros(len(backward)), 0
    for op, end in zip(old, last, strict=True):
        first = min(first, end)
        spread[first : end + 1] += sketch.nodes[op].size_bytes / (end + 1 - first)
        first = end + 1
    return spread


def _remove(sketch: GraphSketch, ops: Sequence[int]) -> None:
    """Take ops out; what came before and behind one on the same rank stays in order."""
    followers = sketch.followers()
    for op in ops:
        node = sketch.nodes[op]
        before = {b for b in node.after if sketch.nodes[b].rank == node.rank >= 0}
        for behind in followers[op]:
            if node.rank >= 0 and sketch.nodes[behind].rank == node.rank:
                sketch.nodes[behind].after |= before
        for b in before:
            followers[b] += [f for f in followers[op] if sketch.nodes[f].rank == node.rank]
    sketch.remove(ops)
