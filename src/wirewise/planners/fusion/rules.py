"""The decision rules of dPRO (MLSys 2022, section 5) and the walk that applies them.

p_n is the n-th backward op that completes gradients, including ops since the previous one; q_n is the reduction of
its gradients; .d is a duration, .e an end. A reduction of s bytes in k chunks goes through three stages (encode,
wire, decode), chunk by chunk:

    t_sync(s, k) = (k - 1) t_slow(s / k) + the sum of the three stages of one chunk.

The paper takes as "slow" the stage with the largest cost per byte, so that the best k is sqrt(s (a_1 + a_2) / b_slow)
with the per-byte costs a of the two others and the fixed cost b of the slow one. Here the slow stage of s / k bytes
is the one that takes longest, so that k is also right if the wire has a low per-byte and a high fixed cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, floor, sqrt

from wirewise.cost.link import LinkCost
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.sim.modules import Decision, group_s, micro_share, recompute_s
from wirewise.trace.modules import BucketSpan

__all__ = [
    "MOST_CHUNKS",
    "apply_rules",
    "best_chunks",
    "op_fusion_pays",
    "stages",
    "sync_s",
    "tensor_fusion_pays",
]

MOST_CHUNKS = 64


def stages(problem: FusionProblem) -> list[LinkCost]:
    """Costs of encode, wire and decode stages of a chunk."""
    _, a, b, c, d = problem.overhead
    return [LinkCost(latency_s=a, s_per_byte=b), problem.wire, LinkCost(latency_s=c, s_per_byte=d)]


def sync_s(size_bytes: float, chunks: int, costs: list[LinkCost]) -> float:
    """Time t_sync in seconds, from the start of the first chunk to the end of the last one."""
    each = [stage.seconds(size_bytes / chunks) for stage in costs]
    return (chunks - 1) * max(each) + sum(each)


def best_chunks(size_bytes: float, costs: list[LinkCost]) -> int:
    """Number of chunks k* that minimises t_sync.

    t_sync is the maximum of convex curves of k, one per candidate slow stage, so its minimum is that of one of them,
    or where two cross.
    """
    whole = sum(stage.s_per_byte for stage in costs)
    exact = [1.0, float(MOST_CHUNKS)]
    for slow in costs:
        if slow.latency_s > 0:
            exact.append(sqrt(size_bytes * max(whole - slow.s_per_byte, 0.0) / slow.latency_s))
    for one, other in combinations(costs, 2):
        if one.latency_s != other.latency_s:
            exact.append(size_bytes * (other.s_per_byte - one.s_per_byte) / (one.latency_s - other.latency_s))
    found = {min(max(part(k), 1), MOST_CHUNKS) for k in exact for part in (floor, ceil)}
    return min(sorted(found), key=lambda k: sync_s(size_bytes, k, costs))


def op_fusion_pays(previous_sync_s: float, previous_s: float, own_s: float, fused_s: float) -> bool:
    """Whether to fuse p_{n-1} and p_n: q_{n-1}.d < p_{n-1}.d + p_n.d - t_fused.

    The compute saved exceeds the communication that can no longer overlap with p_n.
    """
    return previous_sync_s < previous_s + own_s - fused_s


def tensor_fusion_pays(previous_end_s: float, own_ready_s: float, merged_s: float, own_s: float) -> bool:
    """Whether to fuse q_{n-1} and q_n: q_{n-1}.e > p_n.e + t_sync(s_{n-1} + s_n) - t_sync(s_n).

    The previous transfer is so long that delaying its start costs nothing.
    """
    return previous_end_s > own_ready_s + merged_s - own_s


@dataclass(frozen=True)
class _Op:
    """Modules first to last of p_n; seconds on the slowest rank."""

    first: int
    last: int
    forward_s: float
    backward_s: float
    fused: bool = False

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class _State:
    """Where the walk stands; times count from the beginning of the backward pass."""

    op: _Op
    span: BucketSpan
    """The last bucket, not launched yet."""
    ready_s: float
    """End of the op."""
    before_s: float
    """End of the bucket before."""
    end_s: float
    """End of the last bucket, if it is launched now."""


def apply_rules(
    problem: FusionProblem, start: Decision, *, op_fusion: bool = True, partition: bool = True
) -> Decision:
    """Choose buckets, chunks and op fusion by the rules, op by op in backward order.

    Ops that are fused become ready together, so their buckets are fused too; if two buckets are fused, fusing their
    ops loses no overlap and is tried as well.

    Args:
        problem: Modules and links.
        start: Decision that provides precision, recomputation and accumulation; its buckets and fused ops are
            ignored.
        op_fusion: Whether to fuse ops.
        partition: Whether to split buckets into chunks.
    """
    return _Walker(problem, start, op_fusion, partition).run()


class _Walker:
    def __init__(self, problem: FusionProblem, start: Decision, op_fusion: bool, partition: bool) -> None:
        self.problem, self.start, self.op_fusion, self.partition = problem, start, op_fusion, partition
        self.through = stages(problem)
        self.scale = micro_share(problem, start) * problem.factor
        self.buckets: list[BucketSpan] = []
        self.fused: list[tuple[int, int]] = []

    def run(self) -> Decision:
        last = len(self.problem.modules) - 1
        state: _State | None = None
        for gradient, module in enumerate(self.problem.gradients):
            op, span = self._unfused(module, last), BucketSpan(gradient, gradient)
            if state is None:
                state = self._launch(op, span, op.backward_s, 0.0)
            else:
                state = self._next(state, op, span)
            last = module - 1
        if state is not None:
            self._keep(state)
        return replace(self.start, buckets=tuple(self.buckets), fused=tuple(sorted(self.fused)))

    def _next(self, state: _State, own: _Op, span: BucketSpan) -> _State:
        """Decide on p_{n-1} = `state.op` and p_n = `own`."""
        fused, merged = self._fused(own, state.op), BucketSpan(state.span.first, span.last)
        ready = state.ready_s + own.backward_s
        together = fused is not None and op_fusion_pays(
            self._sync_s(state.span), state.op.seconds, own.seconds, fused.seconds
        )
        if not (together or tensor_fusion_pays(state.end_s, ready, self._sync_s(merged), self._sync_s(span))):
            self._keep(state)
            return self._launch(own, span, ready, state.end_s)
        if fused is not None and fused.seconds < state.op.seconds + own.seconds:
            ready -= state.op.backward_s + own.backward_s - fused.backward_s
            return self._launch(fused, merged, ready, state.before_s)
        self._keep_op(state.op)
        return self._launch(own, merged, ready, state.before_s)

    def _launch(self, op: _Op, span: BucketSpan, ready_s: float, before_s: float) -> _State:
        return _State(op, span, ready_s, before_s, max(ready_s, before_s) + self._sync_s(span))

    def _keep(self, state: _State) -> None:
        self._keep_op(state.op)
        self.buckets.append(state.span._replace(chunks=self._chunks(state.span)))

    def _keep_op(self, op: _Op) -> None:
        if op.fused:
            self.fused.append((op.first, op.last))

    def _unfused(self, first: int, last: int) -> _Op:
        pairs = [
            group_s(self.problem, i, i, self.start.precision) or (0.0, 0.0) for i in range(first, last + 1)
        ]
        backward = sum(pair[1] for pair in pairs) + recompute_s(self.problem, self.start, first, last)
        return _Op(first, last, self.scale * sum(pair[0] for pair in pairs), self.scale * backward)

    def _fused(self, own: _Op, before: _Op) -> _Op | None:
        pair = group_s(self.problem, own.first, before.last, self.start.precision) if self.op_fusion else None
        if pair is None:
            return None
        backward = pair[1] + recompute_s(self.problem, self.start, own.first, before.last)
        return _Op(own.first, before.last, self.scale * pair[0], self.scale * backward, fused=True)

    def _chunks(self, span: BucketSpan) -> int:
        return best_chunks(self.problem.size_of(span), self.through) if self.partition else 1

    def _sync_s(self, span: BucketSpan) -> float:
        return sync_s(self.problem.size_of(span), self._chunks(span), self.through)
