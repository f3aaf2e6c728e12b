"""Exhaustive search over bucketings of few gradients, or over a list of caps; and buckets without a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from wirewise.errors import PlanError
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.rules import apply_rules
from wirewise.planners.fusion.score import Scorer
from wirewise.planners.fusion.search import SearchOutcome, Stop, baseline, capped, make_plan, record_search
from wirewise.plans import FusionPlan
from wirewise.sim.modules import Decision
from wirewise.trace.modules import BucketSpan

__all__ = ["MOST_GRADIENTS", "all_bucketings", "ddp", "exhaustive", "rules", "try_all"]

MOST_GRADIENTS = 12


def all_bucketings(gradients: int) -> Iterator[tuple[BucketSpan, ...]]:
    """All 2^(n-1) bucketings of n gradients in order."""
    for cuts in range(2 ** (gradients - 1)):
        lasts = [i for i in range(gradients - 1) if cuts >> i & 1] + [gradients - 1]
        yield tuple(BucketSpan(a + 1, b) for a, b in zip([-1, *lasts], lasts, strict=False))


def try_all(
    problem: FusionProblem,
    scorer: Scorer | None = None,
    *,
    caps: Sequence[float] = (),
    time_budget_s: float = 600.0,
    seed: int = 0,
) -> SearchOutcome:
    """Find the best of all bucketings, or of those by caps, without chunks and op fusion.

    Args:
        problem: Recorded run whose gradients are bucketed.
        scorer: Simulator of decisions. Defaults to a new one.
        caps: Caps in bytes to compare. Defaults to all bucketings.
        time_budget_s: Time limit of the search, in seconds.
        seed: Recorded in the plan.

    Raises:
        PlanError: There are more gradients than `MOST_GRADIENTS`, and no caps.
    """
    stop, scorer, count = Stop(time_budget_s), scorer or Scorer(problem), len(problem.sizes)
    if caps:
        options: Iterator[Decision] = (capped(problem, cap) for cap in caps)
    elif count <= MOST_GRADIENTS:
        options = (Decision(spans) for spans in all_bucketings(count))
    else:
        raise PlanError(
            f"{count} gradients have 2^{count - 1} bucketings; expected at most {MOST_GRADIENTS}: give caps, or use "
            "the planner 'dpro'"
        )
    best = baseline(problem)
    tried = 0
    for option in options:
        best = min(best, option, key=scorer)
        tried += 1
        if stop.late:
            break
    return SearchOutcome(best, scorer(best), tried, stop.seconds, scorer.events, scorer.evaluations)


exhaustive = record_search(try_all, "exhaustive")


def rules(problem: FusionProblem, *, seed: int = 0) -> FusionPlan:
    """Apply dPRO's rules alone, without simulation."""
    decision = apply_rules(problem, replace(baseline(problem), fused=()))
    return make_plan(problem, decision, planner="rules", seed=seed)


def ddp(problem: FusionProblem, *, cap_bytes: float | None = None, seed: int = 0) -> FusionPlan:
    """Bucket gradients as DistributedDataParallel does.

    Args:
        problem: Recorded run whose gradients are bucketed.
        cap_bytes: Cap of a bucket, in bytes. Defaults to those of DistributedDataParallel, 1 MiB for the first and 25
            MiB.
        seed: Recorded in the plan.

    Raises:
        InputError: The cap is not positive.
    """
    decision = baseline(replace(problem, recorded=())) if cap_bytes is None else capped(problem, cap_bytes)
    return make_plan(problem, decision, planner="ddp", seed=seed)
