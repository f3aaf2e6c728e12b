"""Policies that decide in each slot from the state of a running queue: rules, the learned policy, a fixed plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wirewise.errors import InputError
from wirewise.planners.jobs.lookahead import LookAhead
from wirewise.planners.jobs.problem import JobProblem, tune
from wirewise.planners.jobs.rules import RULES, Knowledge, decide_once, expected_queue, knowledge
from wirewise.plans.jobs import JobAllotment, JobPlan
from wirewise.sim.jobs.engine import RUNNING, SLOT, WAITING, QueueState, allot, fits, start, stop
from wirewise.trace.queues import QueueArrays

__all__ = ["OnlinePolicy", "online_policy", "planned_policy"]

OnlinePolicy = Callable[[QueueArrays, QueueState], None]
"""Called once per slot with the queue as estimated, and its state, in which it starts, resizes and stops jobs."""


def online_policy(
    problem: JobProblem, planner: str, *, seed: int = 0, weights: str | None = None
) -> tuple[OnlinePolicy, tuple[str, ...]]:
    """Convert a planner of `PLANNERS["jobs"]` to a policy that decides slot by slot; returns it with notes.

    Rules with amounts per kind are tuned on this queue, with jobs at their expected pace. The learned policy is
    combined with rollouts of rules, or replaced by the rule that is expected to be faster alone, as in its planner.

    Args:
        problem: Jobs and clusters; only fields known to schedulers are used.
        planner: Name of the planner.
        seed: Seed of randomised rules.
        weights: File of weights of the learned policy. Defaults to the shipped ones.

    Raises:
        InputError: The planner does not exist, or the file holds no weights.
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

    def decide(self, forecast: QueueArrays, state: QueueState) -> None:
        """Decide in the current slot."""
        known = knowledge(expected_queue(forecast), self._window, self._patience)
        if self._tuned is not None:
            known = known._replace(due=self._tuned.due, floor=self._tuned.floor)
        decide_once(self._rule, expected_queue(forecast), state, known, self._seed + int(state.counts[SLOT]))


def planned_policy(plan: JobPlan, problem: JobProblem) -> OnlinePolicy:
    """Policy that follows a fixed plan of resources per job and slot.

    Jobs may run late: an unfinished job keeps its last resources, and a job whose slot has come starts as soon as
    there is room, in planned order.

    Args:
        plan: Plan for this queue.
        problem: Jobs and clusters.
    """
    numbers = {one.name: number for number, one in enumerate(problem.queue.queue)}
    due: list[tuple[int, JobAllotment]] = [(numbers[one.job], one) for one in plan.allotments]

    def decide(forecast: QueueArrays, state: QueueState) -> None:
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
            if waits and not _pauses(due, job, slot) and fits(forecast, state, job, one.cluster):
                cpus, gpus = np.minimum(state.free[one.cluster], [one.cpus, one.gpus])
                start(state, job, one.cluster, int(cpus), int(gpus))

    return decide


def _pauses(due: list[tuple[int, JobAllotment]], job: int, slot: int) -> bool:
    """Whether a job has nothing in a slot that lies between two of its allotments."""
    own = [one for number, one in due if number == job]
    return own[0].start <= slot < own[-1].start and not any(one.start <= slot < one.end for one in own)
