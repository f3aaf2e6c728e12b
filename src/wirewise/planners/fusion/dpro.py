"""The search of dPRO (MLSys 2022): memory first, then rules, then replay decides on small changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wirewise.planners.fusion.moves import neighbours
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.planners.fusion.score import Scorer
from wirewise.planners.fusion.search import DEFAULT_PASSES, Found, Stop, bounds, planned, starts
from wirewise.sim.modules import Decision

__all__ = ["dpro", "search"]

_REFINED = 3
"""How many starts are refined."""
_BEFORE_CRITICAL = 2
"""Buckets before the critical path that may change too: what they hold can be moved onto it."""
_LEAST_GAIN = 1e-9
_WORTH = 1e-4
"""Share of the step that a further bucket or chunk must gain: each costs what no model knows."""


def search(
    problem: FusionProblem,
    scorer: Scorer | None = None,
    *,
    memory_budget_bytes: float | None = None,
    time_budget_s: float = 60.0,
    passes: Sequence[str] = DEFAULT_PASSES,
    seed: int = 0,
) -> Found:
    """Buckets, chunks, fused ops, recomputation and accumulation that end the simulated step early.

    A bucket or a chunk that gains less than 0.01 % of the step is left out.

    Args:
        problem: What is decided on.
        scorer: Replays decisions and counts what that takes.
        memory_budget_bytes: Most bytes of a rank; none: unlimited.
        time_budget_s: Seconds for the search.
        passes: What may be changed, some of `PASSES`.
        seed: Recorded in the plan; the search draws nothing.

    Raises:
        PlanError: Nothing fits into the memory, or a knob that is out of range.
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
    return Found(best, scorer(best), rounds, stop.seconds, scorer.events, scorer.evaluations)


dpro = planned(search, "dpro")


def _simplified(scorer: Scorer, decision: Decision, stop: Stop) -> Decision:
    """Without the chunks and borders of buckets that gain nothing."""
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
