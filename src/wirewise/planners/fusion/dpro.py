"""The search of dPRO (MLSys 2022): memory first, then rules, then small changes accepted by replay.

Random small changes, accepted by their gain, are the baseline of its authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.fusion.moves import neighbours
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.score import Scorer
from wirewise.planners.fusion.search import DEFAULT_PASSES, SearchOutcome, Stop, bounds, record_search, starts
from wirewise.sim.modules import Decision

__all__ = ["dpro", "mcmc", "random_search", "search"]

_REFINED = 3
"""How many starts are refined."""
_BEFORE_CRITICAL = 2
"""Buckets before the critical path that may change too: what they hold can be moved onto it."""
_LEAST_GAIN = 1e-9
_WORTH = 1e-4
"""Fraction of the step that a further bucket or chunk must gain: each costs what no model knows."""


def search(
    problem: FusionProblem,
    scorer: Scorer | None = None,
    *,
    memory_budget_bytes: float | None = None,
    time_budget_s: float = 60.0,
    passes: Sequence[str] = DEFAULT_PASSES,
    seed: int = 0,
) -> SearchOutcome:
    """Choose buckets, chunks, op fusion, recomputation and accumulation that minimise the simulated step.

    Changes that gain less than 0.01 % of the step are left out.

    Args:
        problem: Modules and links.
        scorer: Simulator of decisions, which counts its work.
        memory_budget_bytes: Maximum memory of a rank, in bytes. Defaults to unlimited.
        time_budget_s: Time limit of the search, in seconds.
        passes: Allowed changes, from `PASSES`.
        seed: Recorded in the plan; the search is deterministic.

    Raises:
        PlanError: No decision fits into the memory, or an option is out of range.
    """
    stop, scorer, rounds = Stop(time_budget_s), scorer or Scorer(problem), 0
    base = bounds(problem, scorer, memory_budget_bytes, passes)
    ranked = sorted(starts(problem, base, passes), key=scorer)
    best = ranked[0]
    for start in ranked[:_REFINED]:
        stop.restart()
        own, over = start, False
        while not over:
            better = _round(problem, scorer, own, passes, stop)
            rounds += 1
            over = better is own or stop.round(scorer(better))
            own = better
        best = min(best, own, key=scorer)
    if "tensor_fusion" in passes:
        best = _simplified(scorer, best, stop)
    return SearchOutcome(best, scorer(best), rounds, stop.seconds, scorer.events, scorer.evaluations)


dpro = record_search(search, "dpro")


def _simplified(scorer: Scorer, decision: Decision, stop: Stop) -> Decision:
    """The decision without the chunks and borders of buckets that gain nothing."""
    most, place = scorer.rebase(decision) * (1.0 + _WORTH), 0
    while place < len(decision.buckets) and not stop.late:
        own, rest = decision.buckets[place], decision.buckets[place + 1 :]
        simpler = [(own._replace(chunks=1), *rest)] if own.chunks > 1 else []
        simpler += [(rest[0]._replace(first=own.first), *rest[1:])] if rest else []
        options = [replace(decision, buckets=(*decision.buckets[:place], *tail)) for tail in simpler]
        better = next((option for option in options if scorer(option) <= most), None)
        if better is None:
            place += 1
        else:
            decision = better
    return decision


def _round(
    problem: FusionProblem, scorer: Scorer, decision: Decision, passes: Sequence[str], stop: Stop
) -> Decision:
    """The best of all small changes on the critical path; the same object where none is better."""
    best, best_s = decision, scorer.rebase(decision) * (1.0 - _LEAST_GAIN)
    first = max(scorer.first_critical - _BEFORE_CRITICAL, 0)
    for other in neighbours(problem, decision, passes, first):
        if stop.late:
            break
        seconds = scorer(other)
        if seconds < best_s:
            best, best_s = other, seconds
    return best


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
) -> SearchOutcome:
    """Search by a Markov chain from the recorded buckets, over the decisions of `dpro`.

    A worse decision is accepted with probability exp(beta ln(step + 1) (cost - new)), costs in units of the step
    at the start.

    Args:
        problem: Modules and links.
        scorer: Simulator of decisions, which counts its work.
        memory_budget_bytes: Maximum memory of a rank, in bytes. Defaults to unlimited.
        time_budget_s: Time limit of the search, in seconds.
        passes: Allowed changes, from `PASSES`.
        beta: Cooling rate: how soon worse decisions are rejected.
        steps: Maximum number of changes.
        seed: Seed of the chain.

    Raises:
        PlanError: No decision fits into the memory, or an option is out of range.
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
    return SearchOutcome(best, least, step, stop.seconds, scorer.events, scorer.evaluations)


mcmc = record_search(random_search, "mcmc")
