"""Buckets by a dynamic programme."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wirewise.cost.link import LinkCost
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.rules import best_chunks, stages, sync_s
from wirewise.sim.modules import Decision, layers, transfers
from wirewise.trace.modules import BucketSpan

__all__ = ["dynamic"]


def dynamic(
    problem: FusionProblem, start: Decision, *, latency_share: float = 1.0, partition: bool = True
) -> Decision:
    """Buckets that end the step first, if each is reduced alone and after the one before.

    The end of a bucket depends on those before it only through the end of the last and, where launching takes
    time on the computing thread, through their number. Both are best as small as they are, so for every number
    of buckets the earliest end of all buckets up to each gradient is enough:

        end(m, j) = min over i < j of max(end(m - 1, i), ready(j) + m launch) + t_sync(i..j).

    Exact where links serve one collective at a time (`comm_slots` 1), a bucket is one chunk and nothing encodes
    or decodes; n^2 steps for n gradients without launching time, else n^3. Otherwise a good start.

    Args:
        problem: What is decided on.
        start: The rest of the decision; its buckets do not matter.
        latency_share: Of the wire's fixed cost, what a bucket pays; less than 1 where others hide it.
        partition: Whether a bucket may go out in chunks.
    """
    n, launch = len(problem.sizes), problem.overhead.launch_s * problem.factor
    ready, computed_s = _ready(problem, start)
    cost, chunks = _costs(problem, latency_share, partition)
    end = np.full(n + 1, np.inf)
    end[0] = 0.0
    choices: list[np.ndarray] = []
    best, best_count = np.inf, 0
    for count in range(1, n + 1):
        # With free launches the number of buckets does not matter: one table holds them all.
        table, came = _row(end, ready + count * launch, cost, in_place=launch == 0.0)
        choices.append(came)
        total = max(table[n], computed_s + count * launch)
        if total < best:
            best, best_count = total, count
        if launch == 0.0:
            break
        end = table
    return replace(start, buckets=_trace(choices, best_count, n, chunks, launch == 0.0))


def _ready(problem: FusionProblem, start: Decision) -> tuple[np.ndarray, float]:
    """When each gradient is ready, [n], and when all is computed, without launches."""
    ops = layers(problem, start)
    until = np.cumsum([layer.backward_s for layer in reversed(ops)]) + sum(o.forward_s for o in ops)
    each = replace(start, buckets=problem.spans([[i] for i in range(len(problem.sizes))]))
    place = [one.place for one in transfers(problem, each)]
    return until[place] * problem.factor, float(until[-1]) * problem.factor


def _costs(problem: FusionProblem, latency_share: float, partition: bool) -> tuple[np.ndarray, np.ndarray]:
    """t_sync of gradients i..j-1 and its chunks, [n + 1, n + 1]; infinite where i >= j."""
    encode, wire, decode = stages(problem)
    through = [encode, LinkCost(latency_s=wire.latency_s * latency_share, s_per_byte=wire.s_per_byte), decode]
    sums = np.concatenate([[0.0], np.cumsum(problem.sizes)])
    size = sums[None, :] - sums[:, None]
    n = len(problem.sizes)
    chunks = np.ones((n + 1, n + 1), dtype=np.int64)
    cost = np.where(size > 0, sum(stage.latency_s for stage in through), np.inf)
    cost += size * sum(stage.s_per_byte for stage in through)
    if partition and problem.overhead.has_stages:
        for i in range(n):
            for j in range(i + 1, n + 1):
                chunks[i, j] = best_chunks(size[i, j], through)
                cost[i, j] = sync_s(size[i, j], int(chunks[i, j]), through)
    return cost, chunks


def _row(
    before: np.ndarray, ready: np.ndarray, cost: np.ndarray, *, in_place: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Earliest ends with one bucket more, and where the last one begins; in place: with any number more."""
    end = before if in_place else np.full(len(before), np.inf)
    came = np.zeros(len(before), dtype=np.int64)
    for j in range(1, len(before)):
        options = np.maximum(before[:j], ready[j - 1]) + cost[:j, j]
        came[j] = int(np.argmin(options))
        end[j] = options[came[j]]
    return end, came


def _trace(
    choices: list[np.ndarray], count: int, n: int, chunks: np.ndarray, one_table: bool
) -> tuple[BucketSpan, ...]:
    spans, j = [], n
    while j > 0:
        i = int(choices[0 if one_table else count - 1][j])
        spans.append(BucketSpan(i, j - 1, int(chunks[i, j])))
        j, count = i, count - 1
    return tuple(reversed(spans))
