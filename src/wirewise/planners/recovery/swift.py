"""Planner of SWIFT: source of each stage's state after a failure, message logs, checkpoint interval.

Y. Zhong, G. Sheng, J. Liu, J. Yuan, C. Wu: SWIFT: Expedited Failure Recovery for Large-scale DNN Training, TPDS 2024.
A stage with a replica elsewhere is copied from it; the others are recomputed from logged messages if that pays, else
all ranks roll back to the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from wirewise.errors import PlanError
from wirewise.planners.recovery.grouping import GroupChoice, StageGrouping, fronts
from wirewise.planners.recovery.interval import RULES, best_interval, daly_s, young_s
from wirewise.planners.recovery.policies import priced_policies
from wirewise.planners.recovery.problem import RecoveryProblem
from wirewise.plans.recovery import (
    FrontPoint,
    LogTier,
    MessageLog,
    RecoveryPlan,
    RecoveryStrategy,
    StageRecovery,
)
from wirewise.sim.lowering.recovery import with_recoveries
from wirewise.sim.recovery import (
    Efficiency,
    checkpoint_s,
    efficiency,
    group_recompute_s,
    losses_of,
    persist_s,
    recovery_figures,
)
from wirewise.units import format_size

__all__ = ["STRATEGIES", "group_choices", "plan"]

STRATEGIES = ("auto", "replica", "log", "checkpoint")
"""Strategies that may be requested; "auto" for the best of each stage."""

_FOLD_SHARE = 0.2
"""Fraction of a recomputation that handing gradients to one rank may take, above which they are summed as they come."""
_SILENT_STEPS, _LEAST_SILENT_S = 5, 0.5
"""A rank is silent for at least so many steps, and so many seconds, before it counts as dead."""

_MOST_NAMED = 6
_SPARE_PAYS = 0.01
"""Goodput that one more spare adds for it to be named."""


@dataclass(frozen=True)
class _Wanted:
    """Choices of the caller of the planner."""

    strategy: str
    rule: str
    least: int
    most: int


class _Found(NamedTuple):
    plan: RecoveryPlan
    goodput: float


def plan(
    problem: RecoveryProblem,
    *,
    strategy: str = "auto",
    consistency: str = "auto",
    rule: str = "best",
    least_interval: int = 20,
    most_interval: int = 10_000,
    helpers: int = 0,
    parallel_mode: str = "auto",
    spares: int = 1,
    heartbeat_s: float = 0.1,
    silence_limit_s: float | None = None,
    seed: int = 0,
) -> RecoveryPlan:
    """Choose state sources, message logs and the checkpoint interval for the highest goodput.

    Variables are the strategy of each stage, groups of neighbouring stages with the place of their logs, and the
    steps between checkpoints. The objective is goodput: the fraction of time spent on steps computed for the first
    time, under random failures (`sim.recovery.efficiency`); logs of an interval are limited by a budget, groups by
    the memory of a spare. All Pareto-optimal groupings in storage and recomputation are compared, each with its own
    best interval: O(stages^2 * front + front * log(most_interval)).

    Args:
        problem: Job, links, failure rate, and limits.
        strategy: One of `STRATEGIES` for all stages.
        consistency: How to restore a consistent step after a failure amid an update.
        rule: How to choose the interval: best, young or daly; the last two are the textbook formulas.
        least_interval: Minimum number of steps between checkpoints.
        most_interval: Maximum number of steps between checkpoints.
        helpers: Number of survivors that share the recomputation of a stage.
        parallel_mode: How helpers' gradients are summed: exact, fast, or auto, which is exact unless that is slow.
        spares: Number of warm standby processes.
        heartbeat_s: Seconds between heartbeats.
        silence_limit_s: Seconds without a heartbeat after which a rank counts as dead. Defaults to 5 steps, at least
            0.5 s.
        seed: Recorded in the plan; the search is deterministic.

    Raises:
        PlanError: An option is unknown, the job lacks the means for a strategy, or no plan is within the limits; the
            message names what is short.
    """
    for name, value, known in (
        ("strategy", strategy, STRATEGIES),
        ("rule", rule, RULES),
        ("parallel_mode", parallel_mode, ("auto", "exact", "fast")),
    ):
        if value not in known:
            raise PlanError(f"{name} is {value!r}; expected one of: {', '.join(known)}")
    if not 1 <= least_interval <= most_interval:
        raise PlanError(
            f"checkpoints every {least_interval} to {most_interval} steps; expected at least 1, and no less at most"
        )
    step_s = problem.trace.step_s
    silent_s = max(_LEAST_SILENT_S, _SILENT_STEPS * step_s, 2 * heartbeat_s)
    blank = RecoveryPlan(
        world_size=problem.trace.world_size,
        planner="swift",
        seed=seed,
        stages=_stages(problem, "checkpoint"),
        interval_steps=least_interval,
        consistency=consistency,  # type: ignore[arg-type]
        helpers=min(helpers, problem.trace.world_size - 1, problem.trace.microbatches - 1),
        parallel_mode="fast" if parallel_mode == "fast" else "exact",
        spares=spares,
        heartbeat_s=heartbeat_s,
        silence_limit_s=silent_s if silence_limit_s is None else silence_limit_s,
        mtbf_s=problem.mtbf_s,
    )
    blank.check_itself()
    late = _late_steps(problem)
    wanted = _Wanted(strategy, rule, max(least_interval, late), max(most_interval, late))
    found = _best(problem, blank, wanted)
    if parallel_mode == "auto" and found.helpers and (not found.logs or _folds_long(problem, found)):
        fast = _best(problem, replace(blank, parallel_mode="fast"), wanted)
        return fast if fast.goodput > found.goodput else found
    return found


def _best(problem: RecoveryProblem, blank: RecoveryPlan, wanted: _Wanted) -> RecoveryPlan:
    alone = problem.unreplicated_stages
    tried, front = list[_Found](), list[StageGrouping]()
    if wanted.strategy == "checkpoint":
        tried.append(_timed(problem, blank, wanted))
    elif not alone or wanted.strategy == "replica":
        if alone:
            raise PlanError(
                f"stage {alone[0]} on ranks {list(problem.trace.stages[alone[0]].ranks)} has no replica on another "
                "host; expected one for each stage, or strategy auto"
            )
        if wanted.strategy == "log":
            raise PlanError(
                "every stage has a replica on another host, so nothing is logged; expected strategy auto or replica"
            )
        tried.append(_timed(problem, replace(blank, stages=_stages(problem, "replica")), wanted))
    else:
        front = fronts(
            len(problem.trace.stages),
            lambda first, end: group_choices(problem, blank, first, end),
            problem.log_bytes / (wanted.least + _late_steps(problem)),
        )
        tried += [
            _timed(problem, _logged(problem, blank, one), wanted, one.price_bytes)
            for one in front
            if len(one.groups) > 1
        ]
        if wanted.strategy == "auto":
            tried.append(_timed(problem, replace(blank, stages=_stages(problem, "replica")), wanted))
        if not tried:
            raise PlanError(_nothing(problem, wanted))
    best = max(tried, key=lambda one: one.goodput)
    if not best.goodput > 0:
        raise PlanError(
            f"at a failure every {problem.mtbf_s:.4g} s no plan gets on, with recoveries of "
            f"{recovery_figures(best.plan, problem.trace, problem.links).mean.total_s:.4g} s; expected rarer failures"
        )
    found = with_recoveries(best.plan, problem.trace, problem.links)
    points = (FrontPoint(price_bytes=one.price_bytes, cost_s=one.cost_s) for one in front)
    chosen = next((n for n, one in enumerate(tried) if one is best and one.plan.logs), -1)
    found = replace(
        found, front=tuple(points), chosen=chosen, others=priced_policies(problem, found.spares, wanted.most)
    )
    return replace(found, notes=tuple(_notes(problem, found, alone, tried)))


def group_choices(
    problem: RecoveryProblem, plan: RecoveryPlan, first: int, end: int
) -> Sequence[GroupChoice]:
    """Options to group adjacent stages, by the storage of the logs that the group reads.

    Args:
        problem: Job, links and limits.
        plan: Plan that defines the helpers of recomputation.
        first: Index of the first stage.
        end: Index after the last stage.
    """
    trace, group = problem.trace, range(first, end)
    alone = [number for number in problem.unreplicated_stages if number in group]
    if not alone:
        # Whoever is lost is copied, so nobody reads a log.
        return [GroupChoice(first, end, "memory", 0.0, 0.0)]
    if sum(trace.stages[number].state_bytes for number in group) > problem.spare_bytes:
        return []
    share = sum(trace.failure_shares[number] for number in alone)
    read = sum(one.size_bytes for one in trace.messages if one.target in group and one.source not in group)
    tiers: tuple[LogTier, ...] = ("memory", "disk") if read else ("memory",)
    exact = plan.parallel_mode == "exact"
    return [
        GroupChoice(
            first,
            end,
            tier,
            read * problem.prices[tier],
            share * group_recompute_s(trace, problem.links, group, tier, helpers=plan.helpers, exact=exact),
        )
        for tier in tiers
    ]


def _stages(problem: RecoveryProblem, strategy: RecoveryStrategy) -> tuple[StageRecovery, ...]:
    """All stages in one group; those without a replica go back to a checkpoint in any case."""
    alone = problem.unreplicated_stages
    return tuple(
        StageRecovery(ranks=stage.ranks, strategy="checkpoint" if number in alone else strategy, group=0)
        for number, stage in enumerate(problem.trace.stages)
    )


def _logged(problem: RecoveryProblem, blank: RecoveryPlan, grouping: StageGrouping) -> RecoveryPlan:
    """The plan with these groups and all logs that they read."""
    trace, alone = problem.trace, problem.unreplicated_stages
    group_of = [n for n, group in enumerate(grouping.groups) for _ in range(group.first, group.end)]
    read_by = {group_of[number] for number in alone}
    return replace(
        blank,
        stages=tuple(
            StageRecovery(
                ranks=stage.ranks,
                strategy="log" if number in alone else "replica",
                group=group_of[number],
            )
            for number, stage in enumerate(trace.stages)
        ),
        logs=tuple(
            MessageLog(
                source=one.source,
                target=one.target,
                tier=grouping.groups[group_of[one.target]].tier,
                bytes_per_step=one.size_bytes,
            )
            for one in trace.messages
            if group_of[one.source] != group_of[one.target] and group_of[one.target] in read_by
        ),
    )


def _timed(problem: RecoveryProblem, plan: RecoveryPlan, wanted: _Wanted, price_bytes: float = 0.0) -> _Found:
    """The plan with its interval, and its goodput."""
    # Logs are kept until the next checkpoint is durable.
    kept = problem.log_bytes / price_bytes - _late_steps(problem) if price_bytes else wanted.most
    most = max(int(min(wanted.most, kept)), wanted.least)
    at = _goodput_of(problem, plan)
    steps = (
        best_interval(lambda one: at(one).goodput, wanted.least, most)
        if wanted.rule == "best"
        else min(max(_steps_by_rule(problem, plan, wanted.rule), wanted.least), most)
    )
    return _Found(replace(plan, interval_steps=steps), at(steps).goodput)


def _goodput_of(problem: RecoveryProblem, plan: RecoveryPlan) -> Callable[[int], Efficiency]:
    """Goodput of the plan as a function of the checkpoint interval in steps."""
    overhead_s = recovery_figures(plan, problem.trace, problem.links).overhead_s
    losses = losses_of(plan, problem.trace, problem.links, problem.mtbf_s)

    def at(steps: int) -> Efficiency:
        return efficiency(
            problem.trace.step_s,
            losses,
            problem.mtbf_s,
            interval_steps=steps,
            checkpoint_s=checkpoint_s(problem.trace),
            overhead_s=overhead_s,
        )

    return at


def _late_steps(problem: RecoveryProblem) -> int:
    """Steps until a checkpoint is durable; the next one is not begun before."""
    return math.ceil(persist_s(problem.trace) / problem.trace.step_s)


def _steps_by_rule(problem: RecoveryProblem, plan: RecoveryPlan, rule: str) -> int:
    trace = problem.trace
    lost_s = sum(one.share * one.step_s for one in losses_of(plan, trace, problem.links, problem.mtbf_s))
    seconds = (young_s if rule == "young" else daly_s)(
        problem.mtbf_s, checkpoint_s(trace), lost_s / trace.step_s
    )
    return round(min(seconds / trace.step_s, 1e9))


def _folds_long(problem: RecoveryProblem, found: RecoveryPlan) -> bool:
    """Whether handing gradients to one rank takes a large share of some group's recomputation."""
    trace, links = problem.trace, problem.links
    for group in found.groups:
        if any(found.stages[number].strategy == "log" for number in group):
            tier = found.tier_of(group)
            took, summed = (
                group_recompute_s(trace, links, group, tier, helpers=found.helpers, exact=exact)
                for exact in (True, False)
            )
            if took - summed > _FOLD_SHARE * took:
                return True
    return False


def _nothing(problem: RecoveryProblem, wanted: _Wanted) -> str:
    least = max(stage.state_bytes for stage in problem.trace.stages)
    return (
        f"no groups of stages are recovered by logs within {format_size(problem.log_bytes)} of logs for "
        f"{wanted.least} steps and {format_size(problem.spare_bytes)} of a spare's memory, of which a stage needs "
        f"{format_size(least)}; give more, or choose strategy auto"
    )


def _notes(
    problem: RecoveryProblem, found: RecoveryPlan, alone: Sequence[int], tried: Sequence[_Found]
) -> Iterator[str]:
    steps = {rule: _steps_by_rule(problem, found, rule) for rule in ("young", "daly")}
    if max(steps.values()) < 1e9:
        yield f"Young's rule says a checkpoint every {steps['young']} steps, Daly's every {steps['daly']}"
    if alone:
        said = ", ".join(map(str, alone[:_MOST_NAMED])) + (" and others" if len(alone) > _MOST_NAMED else "")
        yield f"no replica on another host outlives a rank of stage{'s' * (len(alone) > 1)} {said}"
    if any(stage.strategy == "log" for stage in found.stages):
        size = sum(log.bytes_per_step for log in found.logs)
        yield (
            f"logs take {format_size(size)} a step, {format_size(size * found.interval_steps)} between two "
            f"checkpoints, in {len(found.groups)} groups"
        )
        others = [one for one in tried if not one.plan.logs]
        if others:
            yield f"without logs, goodput is {others[0].goodput:.2%}, with them {found.goodput:.2%}"
    elif alone and any(one.plan.logs for one in tried):
        best = max(one.goodput for one in tried if one.plan.logs)
        yield f"logs do not pay: goodput with the best of them is {best:.2%}, without {found.goodput:.2%}"
    more = with_recoveries(replace(found, spares=found.spares + 1), problem.trace, problem.links).goodput
    if more > found.goodput + _SPARE_PAYS:
        yield f"with {found.spares + 1} spares goodput is {more:.2%}, because fewer failures wait for a new process"
