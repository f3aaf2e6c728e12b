"""Random small changes, accepted by their gain: the comparison of dPRO's authors."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.fusion.moves import neighbours
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.score import Scorer
from wirewise.planners.fusion.search import DEFAULT_PASSES, Found, Stop, bounds, planned

__all__ = ["mcmc", "random_search"]


def random_search(
    problem: FusionProblem,
    scorer: Scorer | None = None,
    *,
    memory_budget_bytes: float | None = None,
    time_budget_s: float = 60.0,
    passes: Sequence[str] = DEFAULT_PASSES,
    beta: float = 10.0,
    steps: int = 2000,
    seed: int = 0,
) -> Found:
    """A Markov chain from the buckets of the run, for what `dpro` decides.

    A worse decision is accepted with probability exp(beta ln(step + 1) (cost - new)), costs in units of the step
    at the start.

    Args:
        problem: What is decided on.
        scorer: Replays decisions and counts what that takes.
        memory_budget_bytes: Most bytes of a rank; none: unlimited.
        time_budget_s: Seconds for the search.
        passes: What may be changed, some of `PASSES`.
        beta: How soon worse decisions are refused.
        steps: Changes that are tried at most.
        seed: Seed of the draws.

    Raises:
        PlanError: Nothing fits into the memory, or a knob that is out of range.
    """
    if not beta > 0 or steps < 1:
        raise PlanError(f"beta is {beta} and steps {steps}; expected beta above 0 and at least one step")
    stop, scorer, random = Stop(time_budget_s), scorer or Scorer(problem), np.random.default_rng(seed)
    now = best = bounds(problem, scorer, memory_budget_bytes, passes)
    unit = cost = least = scorer.rebase(now)
    step = 0
    for step in range(1, steps + 1):
        options = list(neighbours(problem, now, passes))
        if stop.late or not options:
            break
        other = options[int(random.integers(len(options)))]
        new = scorer(other)
        if new <= cost or random.random() < exp(beta * log(step + 1) * (cost - new) / unit):
            now, cost = other, scorer.rebase(other)
        if cost < least:
            best, least = now, cost
    return Found(best, least, step, stop.seconds, scorer.events, scorer.evaluations)


mcmc = planned(random_search, "mcmc")
