"""Shared parts of the searches: starting points, stopping rule, resulting plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np

from wirewise import work
from wirewise.cost.link import LinkCost
from wirewise.errors import PlanError
from wirewise.planners.fusion.memory import fit_memory, peak_bytes
from wirewise.planners.fusion.moves import PASSES
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.rules import apply_rules, best_chunks, stages, sync_s
from wirewise.planners.fusion.score import Scorer
from wirewise.plans import Bucket, FusionPlan
from wirewise.plans.fusion import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ddp_buckets
from wirewise.sim.modules import Decision, layers, transfers
from wirewise.trace.modules import BucketSpan

__all__ = [
    "DEFAULT_PASSES",
    "SearchOutcome",
    "Stop",
    "baseline",
    "bounds",
    "capped",
    "dynamic",
    "make_plan",
    "record_search",
    "starts",
]

DEFAULT_PASSES = tuple(name for name in PASSES if name != "precision")
"""Passes that leave results unchanged: all except "precision"."""

_LEAST_CHANGE, _ROUNDS = 1e-3, 5


@dataclass(frozen=True)
class SearchOutcome:
    """Decision, and statistics of its search."""

    decision: Decision
    step_s: float
    rounds: int
    seconds: float
    events: int
    """Number of ops that were simulated."""
    evaluations: int


class Stop:
    """Stopping rule: the work limit is reached, or five rounds improved less than 0.1 %."""

    def __init__(self, time_budget_s: float, clock: Callable[[], float] = work.spent_s) -> None:
        if not time_budget_s > 0:
            raise PlanError(f"the time budget is {time_budget_s} s; expected seconds above 0")
        self._clock, self._begin = clock, clock()
        self._budget_s, self._best = time_budget_s, list[float]()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begin

    @property
    def late(self) -> bool:
        """Whether the limit is reached."""
        return self.seconds >= self._budget_s

    def round(self, best_s: float) -> bool:
        """Record the best step after a round; returns whether to stop."""
        self._best.append(best_s)
        settled = len(self._best) > _ROUNDS and best_s > (1 - _LEAST_CHANGE) * self._best[-1 - _ROUNDS]
        return settled or self.late

    def restart(self) -> None:
        """Reset the improvements counted per round, but not the time spent."""
        self._best = []


def capped(problem: FusionProblem, cap_bytes: float, first_bytes: float | None = None) -> Decision:
    """Bucket by the rule of DistributedDataParallel; `first_bytes` defaults to the same cap for the first bucket."""
    first = cap_bytes if first_bytes is None else first_bytes
    return Decision(problem.spans(ddp_buckets(problem.sizes, cap_bytes, first)))


def baseline(problem: FusionProblem) -> Decision:
    """Decision without a plan: the recorded buckets, else those of DistributedDataParallel."""
    return (
        Decision(problem.recorded)
        if problem.recorded
        else capped(problem, DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES)
    )


def bounds(
    problem: FusionProblem, scorer: Scorer, memory_budget_bytes: float | None, passes: Sequence[str]
) -> Decision:
    """Choose the fastest precision, recomputation and accumulation that fit into the memory.

    Raises:
        PlanError: A pass is unknown, or no decision fits.
    """
    unknown = sorted(set(passes) - set(PASSES))
    if unknown:
        raise PlanError(f"unknown passes {unknown}; expected some of {', '.join(PASSES)}")
    start = baseline(problem)
    if memory_budget_bytes is not None and peak_bytes(problem, start) > memory_budget_bytes:
        options = fit_memory(problem, start, memory_budget_bytes, passes)
    elif "precision" in passes and any(module.bfloat16_s for module in problem.modules):
        options = [start, replace(start, precision="bfloat16")]
        options = [o for o in options if peak_bytes(problem, o) <= (memory_budget_bytes or float("inf"))]
    else:
        options = [start]
    return min(options, key=lambda one: scorer(dynamic(problem, one)))


def starts(problem: FusionProblem, base: Decision, passes: Sequence[str]) -> list[Decision]:
    """Starting points of the search: by the rules, by dynamic programmes, by caps."""
    op_fusion, partition = "op_fusion" in passes, "partition" in passes
    if "tensor_fusion" not in passes:
        return [base]
    plain = replace(base, fused=())
    by_rules = apply_rules(problem, plain, op_fusion=op_fusion, partition=partition)
    found = [base, by_rules]
    shares = [1.0] if problem.comm_slots == 1 else [1.0, 1.0 / problem.comm_slots, 0.0]
    for start in {plain, by_rules}:
        found += [dynamic(problem, start, latency_share=share, partition=partition) for share in shares]
    whole = sum(problem.sizes)
    for cap in (1.0, DDP_BUCKET_BYTES, *(whole / 2**i for i in range(6))):
        found.append(replace(plain, buckets=capped(problem, cap).buckets))
    return list(dict.fromkeys(found))


def make_plan(
    problem: FusionProblem, decision: Decision, *, planner: str, scorer: Scorer | None = None, seed: int = 0
) -> FusionPlan:
    """Build the plan of a decision, with the simulated step and the step without a plan."""
    scorer = scorer or Scorer(problem)
    made = []
    for span in decision.buckets:
        modules = [problem.modules[i] for i in problem.gradients[span.first : span.last + 1]]
        names = tuple(name for module in modules for name in module.parameters or (module.name,))
        size = max(round(problem.size_of(span)), 1)
        made.append(Bucket(parameters=names, size_bytes=size, chunks=min(span.chunks, size)))
    op_names = [module.name for module in problem.modules]
    plan = FusionPlan(
        world_size=len(problem.hosts),
        planner=planner,
        seed=seed,
        buckets=tuple(made),
        fused_ops=tuple(tuple(op_names[first : last + 1]) for first, last in decision.fused),
        precision=decision.precision,
        recompute=tuple(op_names[i] for i in sorted(decision.recompute)),
        accumulation=decision.accumulation,
        predicted_step_s=scorer(decision),
        baseline_step_s=scorer(baseline(problem)),
        predicted_memory_bytes=round(peak_bytes(problem, decision)),
    )
    plan.check_itself()
    return plan


def record_search(search: Callable[..., SearchOutcome], planner: str) -> Callable[..., FusionPlan]:
    """Convert a search to a planner that returns a plan, with the options of the search.

    Args:
        search: Function `(problem, scorer, *, seed, **knobs)` that returns a `SearchOutcome`.
        planner: Name of the planner, recorded in its plans.
    """

    @wraps(search)
    def plan(problem: FusionProblem, *, seed: int = 0, **knobs: Any) -> FusionPlan:
        scorer = Scorer(problem)
        found = search(problem, scorer, seed=seed, **knobs)
        return make_plan(problem, found.decision, planner=planner, scorer=scorer, seed=seed)

    return plan


def dynamic(
    problem: FusionProblem, start: Decision, *, latency_share: float = 1.0, partition: bool = True
) -> Decision:
    """Find the buckets that end the step first, if each is reduced alone and after the previous one.

    The end of a bucket depends on earlier ones only through the end of the last and, if launching takes time on the
    compute thread, through their number. Smaller is better for both, so the earliest end of all buckets up to each
    gradient suffices for every number of buckets:

        end(m, j) = min over i < j of max(end(m - 1, i), ready(j) + m launch) + t_sync(i..j).

    Exact if links serve one collective at a time (`comm_slots` 1), a bucket is one chunk and nothing encodes or
    decodes; n^2 steps for n gradients without launch time, else n^3. Otherwise a good starting point.

    Args:
        problem: Modules and links.
        start: Remaining parts of the decision; its buckets are ignored.
        latency_share: Fraction of the wire's fixed cost that a bucket pays; less than 1 if others hide it.
        partition: Whether a bucket may be split into chunks.
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
    return replace(start, buckets=_spans(choices, best_count, n, chunks, launch == 0.0))


def _ready(problem: FusionProblem, start: Decision) -> tuple[np.ndarray, float]:
    """When each gradient is ready, [n], and when all is computed, without launches."""
    ops = layers(problem, start)
    until = np.cumsum([layer.backward_s for layer in reversed(ops)]) + sum(o.forward_s for o in ops)
    each = replace(start, buckets=problem.spans([[i] for i in range(len(problem.sizes))]))
    place = [one.place for one in transfers(problem, each)]
    return until[place] * problem.factor, float(until[-1]) * problem.factor


def _costs(problem: FusionProblem, latency_share: float, partition: bool) -> tuple[np.ndarray, np.ndarray]:
    """Times t_sync of gradients i..j-1 and its chunks, [n + 1, n + 1]; infinite where i >= j."""
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


def _spans(
    choices: list[np.ndarray], count: int, n: int, chunks: np.ndarray, one_table: bool
) -> tuple[BucketSpan, ...]:
    spans, j = [], n
    while j > 0:
        i = int(choices[0 if one_table else count - 1][j])
        spans.append(BucketSpan(i, j - 1, int(chunks[i, j])))
        j, count = i, count - 1
    return tuple(reversed(spans))
