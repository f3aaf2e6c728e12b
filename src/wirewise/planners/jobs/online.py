"""Policies that decide in each slot from the state of a queue that runs: rules, the learned one, a plan made before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wirewise.errors import InputError
from wirewise.planners.jobs.lookahead import LookAhead
from wirewise.planners.jobs.problem import JobProblem, tune
from wirewise.planners.jobs.rules import RULES, Knowledge, decide_once, expected, knowledge
from wirewise.plans.jobs import JobAllotment, JobPlan
from wirewise.sim.jobs.engine import RUNNING, SLOT, WAITING, QueueState, allot, fits, start, stop
from wirewise.trace.queues import QueueArrays

__all__ = ["OnlinePolicy", "online_policy", "planned_policy"]

OnlinePolicy = Callable[[QueueArrays, QueueState], None]
"""Called once a slot with the queue as it is believed to be, and its state; starts, resizes and stops jobs in that."""


def online_policy(
    problem: JobProblem, planner: str, *, seed: int = 0, weights: str | None = None
) -> tuple[OnlinePolicy, tuple[str, ...]]:
    """A planner of `PLANNERS["jobs"]` as a policy that decides slot by slot, and what is to be said of it.

    Rules with amounts for each kind have them tuned on this queue, as jobs are expected to go. The learned policy is
    followed with rules looked at beside it, or the rule that is expected to be quicker alone, as by its planner.

    Args:
        problem: Jobs and clusters; only what schedulers may know of them is used.
        planner: Name of the planner.
        seed: Seed of rules that draw.
        weights: File of weights of the learned policy; None: those that come with wirewise.

    Raises:
        InputError: There is no such planner, or the file holds no weights.
    """
    if planner in RULES:
        return _Rule(problem, planner, seed).decide, ()
    if planner != "tapfinger":
        raise InputError(f"planner is {planner!r}; expected tapfinger or one of: {', '.join(RULES)}")
    from wirewise.planners.jobs.policy import proposal_of
    from wirewise.planners.jobs.tapfinger import SHIPPED, plan_tapfinger, read_weights

    notes = plan_tapfinger(problem.at_ordinary_pace(), seed=seed, weights=weights).notes
    if notes[-1].endswith("which is followed"):
        (rule,) = [rule for rule in RULES if f"{rule!r} alone" in notes[-1]]
        return _Rule(problem, rule, seed).decide, notes
    network = read_weights(SHIPPED if weights is None else weights)
    return LookAhead(problem, proposal_of(network, problem)).decide, notes


class _Rule:
    """A rule.

    Args:
        problem: Jobs and clusters.
        rule: Name of the rule.
        seed: Seed of what it draws.
    """

    def __init__(self, problem: JobProblem, rule: str, seed: int) -> None:
        self._rule, self._seed = RULES.index(rule), seed
        self._window, self._patience = problem.window, problem.patience
        self._tuned: Knowledge | None = None
        if rule in ("threshold", "tiresias"):
            self._tuned = tune([problem.at_ordinary_pace()], rule)

    def decide(self, believed: QueueArrays, state: QueueState) -> None:
        """Decide in the current slot."""
        known = knowledge(expected(believed), self._window, self._patience)
        if self._tuned is not None:
            known = known._replace(due=self._tuned.due, floor=self._tuned.floor)
        decide_once(self._rule, expected(believed), state, known, self._seed + int(state.counts[SLOT]))


def planned_policy(plan: JobPlan, problem: JobProblem) -> OnlinePolicy:
    """A policy that follows a plan made before: who has what in which slot.

    Reality may be late: a job that is not done keeps what it was last given, and one whose slot has come starts as soon
    as there is room for it, those that were planned earlier first.

    Args:
        plan: Plan for this queue.
        problem: Jobs and clusters.
    """
    numbers = {one.name: number for number, one in enumerate(problem.queue.queue)}
    due: list[tuple[int, JobAllotment]] = [(numbers[one.job], one) for one in plan.allotments]

    def decide(believed: QueueArrays, state: QueueState) -> None:
        slot = int(state.counts[SLOT])
        now = {job: one for job, one in due if one.start <= slot}
        for job in state.running[: state.counts[RUNNING]].tolist():
            # Its next allotment has begun; or it was to pause between two.
            if now[job].cluster != state.cluster[job] or _pauses(due, job, slot):
                stop(state, job)
        for shrinking in (True, False):
            for job in state.running[: state.counts[RUNNING]].tolist():
                wanted, held = np.array([now[job].cpus, now[job].gpus]), state.held[job]
                free = state.free[state.cluster[job]]
                if shrinking or (wanted - held <= free).all():
                    cpus, gpus = np.minimum(wanted, held) if shrinking else wanted
                    allot(state, job, int(cpus), int(gpus))
        for job, one in now.items():
            waits = job in state.waiting[: state.counts[WAITING]]
            if waits and not _pauses(due, job, slot) and fits(believed, state, job, one.cluster):
                cpus, gpus = np.minimum(state.free[one.cluster], [one.cpus, one.gpus])
                start(state, job, one.cluster, int(cpus), int(gpus))

    return decide


def _pauses(due: list[tuple[int, JobAllotment]], job: int, slot: int) -> bool:
    """Whether a job has nothing in a slot that lies between two of its allotments."""
    own = [one for number, one in due if number == job]
    return own[0].start <= slot < own[-1].start and not any(one.start <= slot < one.end for one in own)
