"""The simulated step of a fusion (DisCo, section on the simulator; TPDS 2022).

One device runs the regions, first ready first. A bucket's all-reduce is issued when its last gradient is ready, takes
linear time in its bytes, and has the channel exclusively; compute continues meanwhile, slower if sending uses the
same resources (the paper: at full speed). The step ends when both are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.link import LinkCost
from wirewise.errors import InputError
from wirewise.planners.arrays import Ints, Vector
from wirewise.planners.fusion.disco.order import gradients_ready, launch_order
from wirewise.sim.compiled import outer
from wirewise.sim.region_costs import RegionCosts
from wirewise.sim.regions import Fusion, arrays, describe, signatures
from wirewise.trace.operators import FusionGraph

__all__ = ["Region", "State", "StepModel", "Times"]


@dataclass(frozen=True, eq=False)
class State:
    """Regions and buckets; its arrays are immutable."""

    fusion: Fusion
    bucket: Ints
    """Number of the bucket of each gradient: the smallest index of its gradients, [gradients]."""
    seconds: Vector
    """Seconds of each region by its number, 0 for numbers without a region, [operators]."""
    signatures: NDArray[np.uint64]
    """Signature of each region by its number, equal for equal regions, [operators]."""
    ready_s: Vector
    """Seconds of compute until each gradient is ready, [gradients]."""

    @property
    def key(self) -> bytes:
        """Hashable key, equal for equal states."""
        found = blake2b(digest_size=16)
        for one in (*self.fusion, self.bucket):
            found.update(one.tobytes())
        return found.digest()


class Times(NamedTuple):
    """Times of a step, in seconds."""

    step_s: float
    compute_s: float
    communicate_s: float

    @property
    def full_overlap_s(self) -> float:
        """Lower bound of the step with full overlap (FO), in seconds."""
        return max(self.compute_s, self.communicate_s)


class Region(NamedTuple):
    """Operators fused into one kernel."""

    number: int
    operators: tuple[int, ...]
    """Indices of the operators, copies among them."""
    outputs: tuple[int, ...]
    start_s: float
    end_s: float


class StepModel:
    """Step model whose regions and buckets are chosen.

    Args:
        graph: Graph of the operators.
        costs: Costs of regions; each region is evaluated once.
        all_reduce: Seconds of an all-reduce by bytes.
        overlap_rate: Compute speed while a bucket is in flight, relative to 1 without.
        ranks: Number of ranks that `all_reduce` holds for.

    Raises:
        InputError: The graph is invalid, the line decreases or is not finite, or the rate is invalid.
    """

    def __init__(
        self,
        graph: FusionGraph,
        costs: RegionCosts,
        all_reduce: LinkCost,
        *,
        overlap_rate: float = 1.0,
        ranks: int = 2,
    ) -> None:
        graph.check_itself()
        if not all(isfinite(value) and value >= 0 for value in (all_reduce.latency_s, all_reduce.s_per_byte)):
            raise InputError(f"the all-reduce takes {all_reduce}; expected finite figures of at least 0")
        if not 0 < overlap_rate <= 1:
            raise InputError(f"overlap_rate is {overlap_rate}; expected a share above 0 and up to 1")
        self.graph, self.arrays, self.all_reduce = graph, arrays(graph), all_reduce
        self.overlap_rate, self.ranks = overlap_rate, ranks
        self.related = _related(graph)
        self.costs, self.evaluations = costs, 0
        self._known = {0: 0.0}
        words = np.random.default_rng(0).integers(2**64, size=(len(graph.operators), 2), dtype=np.uint64)
        self._words = words

    def alone(self) -> State:
        """State with each operator and each gradient separate."""
        count, none = len(self.arrays.kept), np.empty(0, dtype=np.int64)
        nothing = State(
            fusion=Fusion(np.arange(count), none, none),
            bucket=np.arange(len(self.arrays.gradients)),
            seconds=np.zeros(count),
            signatures=np.zeros(count, dtype=np.uint64),
            ready_s=np.zeros(len(self.arrays.gradients)),
        )
        return self.fused(nothing, nothing.fusion)

    def fused(self, state: State, fusion: Fusion) -> State:
        """State with other regions, whose changed ones are re-evaluated.

        Raises:
            InputError: The costs return an invalid time.
        """
        found, seconds = signatures(self.arrays, fusion, self._words), state.seconds.copy()
        for region in np.flatnonzero(found != state.signatures).tolist():
            seconds[region] = self._seconds(fusion, region, int(found[region]))
        return State(fusion, state.bucket, seconds, found, gradients_ready(self.arrays, fusion, seconds))

    def _seconds(self, fusion: Fusion, region: int, signature: int) -> float:
        found = self._known.get(signature)
        if found is None:
            operators, leaving = (tuple(one.tolist()) for one in describe(self.arrays, fusion, region))
            found = self._known[signature] = float(self.costs(operators, leaving))
            if not 0 <= found < np.inf:
                raise InputError(f"operators {operators} cost {found} s together; expected a finite time")
        return found

    def times(self, state: State) -> Times:
        """Simulate the step."""
        self.evaluations += 1
        wire = (self.all_reduce.latency_s, self.all_reduce.s_per_byte)
        size, compute = self.arrays.size_bytes, state.seconds.sum()
        return Times(*_step(state.ready_s, size, state.bucket, *wire, compute, self.overlap_rate))

    def regions(self, state: State) -> list[Region]:
        """Regions in launch order; their times exclude the slowdown by buckets in flight."""
        found, now = [], 0.0
        for region in launch_order(self.arrays, state.fusion).tolist():
            operators, leaving = (tuple(one.tolist()) for one in describe(self.arrays, state.fusion, region))
            end = now + float(state.seconds[region])
            found.append(Region(region, operators, leaving, now, end))
            now = end
        return found

    def buckets(self, state: State) -> list[list[int]]:
        """Gradient indices of each bucket, in ready order."""
        found, bucket, ready = dict[int, list[int]](), state.bucket.tolist(), state.ready_s.tolist()
        for gradient in np.argsort(state.ready_s, kind="stable").tolist():
            found.setdefault(bucket[gradient], []).append(gradient)
        return sorted(found.values(), key=lambda one: ready[one[-1]])

    def with_buckets(self, state: State, groups: Iterable[Sequence[int]]) -> State:
        """State with other buckets, given as lists of gradients."""
        bucket = [0] * len(state.bucket)
        for group in groups:
            least = min(group)
            for gradient in group:
                bucket[gradient] = least
        return replace(state, bucket=np.array(bucket))


def _related(graph: FusionGraph) -> list[list[int]]:
    """Gradients that each gradient is computed from, or that are computed from it."""
    number, found = {operator: g for g, operator in enumerate(graph.gradients)}, list[list[int]]()
    for operator in graph.gradients:
        found.append([number[i] for i in graph.operators[operator].inputs if i in number])
        for i in found[-1]:
            found[i].append(len(found) - 1)
    return found


@outer
def _step(
    ready: Vector, size: Vector, bucket: Ints, latency: float, per_byte: float, compute: float, rate: float
) -> tuple[float, float, float]:
    """Seconds of the step, of computing alone and of communication."""
    g = len(ready)
    issued, held = np.full(g, -1.0), np.zeros(g)
    for i in range(g):
        issued[bucket[i]] = max(issued[bucket[i]], ready[i])
        held[bucket[i]] += size[i]
    now = computed = communicate = 0.0
    for b in np.argsort(issued, kind="mergesort"):
        if issued[b] >= 0.0:
            own, alone = latency + per_byte * held[b], max(issued[b] - computed, 0.0)
            now, communicate = now + alone + own, communicate + own
            computed = min(computed + alone + rate * own, compute)
    return max(now + (compute - computed), compute), compute, communicate
