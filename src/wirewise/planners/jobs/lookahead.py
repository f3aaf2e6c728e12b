"""Rollout: each slot follows the rule that is expected to finish the present jobs soonest.

D. Bertsekas, J. Tsitsiklis, C. Wu: Rollout Algorithms for Combinatorial Optimization, Journal of Heuristics 1997. The
progress of running jobs reveals their own pace, which no rule alone uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import PlanError
from wirewise.planners.jobs.problem import JobProblem, tune
from wirewise.planners.jobs.rules import (
    RULES,
    Knowledge,
    decide_once,
    expected_queue,
    hold_for_overdue,
    knowledge,
    run_rule,
)
from wirewise.sim.jobs.engine import (
    ARRIVED,
    LOGGED,
    RUNNING,
    SLOT,
    WAITING,
    QueueState,
    advance,
    arrive,
    new_state,
)
from wirewise.trace.queues import QueueArrays

__all__ = ["LOOKED_AT", "PROPOSED", "TUNED", "LookAhead", "Proposal", "follow_policy"]

Proposal = Callable[[QueueArrays, QueueState], None]
"""Function that starts jobs in the current slot, given the believed state of a queue."""

LOOKED_AT = ("threshold", "heft", "sjf", "tiresias", "optimus", "srpt", "gavel")
"""Rules whose decisions for the current slot are compared."""
_AFTERWARDS = ("threshold", "heft", "srpt", "optimus")
"""Rules that may go on from the next slot."""
TUNED = ("threshold", "tiresias")
"""Rules whose amounts are tuned."""
PROPOSED = "proposal"
"""Name under which decisions that followed the proposal are counted; it wins ties."""
_HORIZON = 32
"""Slots that are looked ahead; a job that is not done by then counts as many again for what it lacks."""
_PACES = (0.25, 4.0)
"""Least and greatest pace that is believed."""
_OF_JOBS = ("waiting", "running", "cluster", "held", "done", "served", "since", "finish", "changed")


class LookAhead:
    """Rollout policy that decides slot by slot.

    Args:
        problem: Jobs and clusters; only fields known to schedulers are used.
        proposal: Policy to evaluate besides the rules. Defaults to none.
        tuned: Settings of rules with tuned amounts; other rules get the ordinary ones. Defaults to tuning on this
            queue, with jobs at their expected pace.

    Attributes:
        followed: Number of decisions that followed each rule or the proposal.
    """

    def __init__(
        self,
        problem: JobProblem,
        proposal: Proposal | None = None,
        tuned: Mapping[str, Knowledge] | None = None,
    ) -> None:
        if tuned is None:
            usual = problem if problem.oracle else problem.at_ordinary_pace()
            tuned = {rule: tune([usual], rule) for rule in TUNED}
        self._tuned = tuned
        self._proposal, self._kept = proposal, problem.kept
        self._window, self._patience = problem.window, problem.patience
        self._own_pace = problem.oracle
        jobs = len(problem.arrays.arrival)
        self._paces = np.ones(jobs)
        self._gained, self._expected = np.zeros(jobs), np.zeros(jobs)
        self._before: tuple[int, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]] | None = None
        self._seen = (0, 0, 0, 0)
        self.followed: Counter[str] = Counter()

    def decide(self, forecast: QueueArrays, state: QueueState) -> None:
        """Decide in the current slot, if anything has changed since the last decision."""
        if not self._own_pace:
            self._learn(state)
            forecast = forecast._replace(pace=self._paces)
        if state.counts[RUNNING] and self._news(forecast, state) == self._seen:
            # Nobody came, left, or showed a pace: what was decided still holds.
            self._expect(forecast, state)
            return
        known = knowledge(expected_queue(forecast), self._window, self._patience)
        proposed = (PROPOSED,) if self._proposal is not None and state.counts[WAITING] else ()
        best = min((*proposed, *LOOKED_AT), key=lambda who: self._cost(who, forecast, state, known))
        self.followed[best] += 1
        self._act(best, forecast, state, known)
        self._seen = self._news(forecast, state)
        self._expect(forecast, state)

    def _news(self, forecast: QueueArrays, state: QueueState) -> tuple[int, int, int, int]:
        """Jobs that have come, that run, whose pace is known, and that have waited for too long."""
        waiting = state.waiting[: state.counts[WAITING]]
        waited = state.counts[SLOT] - forecast.arrival[waiting]
        overdue = int((waited >= self._patience).sum()) if self._patience else 0
        known = int((self._expected > 0).sum())
        return int(state.counts[ARRIVED]), int(state.counts[RUNNING]), known, overdue

    def _act(self, who: str, forecast: QueueArrays, state: QueueState, knowledge: Knowledge) -> None:
        if who == PROPOSED and self._proposal is not None:
            withheld = np.zeros_like(state.free)
            hold_for_overdue(forecast, state, knowledge, withheld)
            self._proposal(forecast, state)
            state.free[:] += withheld
        else:
            slot = int(state.counts[SLOT])
            decide_once(RULES.index(who), forecast, state, self._known(who, knowledge), slot)

    def _known(self, rule: str, knowledge: Knowledge) -> Knowledge:
        found = self._tuned.get(rule)
        return knowledge if found is None else knowledge._replace(due=found.due, floor=found.floor)

    def _cost(self, who: str, forecast: QueueArrays, state: QueueState, knowledge: Knowledge) -> float:
        """Slots until the end of all jobs that have come, if `who` decides now and the best of rules afterwards."""
        last = int(state.counts[SLOT]) + _HORIZON
        queue, following = _arrived(forecast, state)
        self._act(who, queue, following, knowledge)
        advance(queue, following, self._kept)
        costs = []
        for rule in _AFTERWARDS:
            _, after = _arrived(queue, following)
            run_rule(
                RULES.index(rule), queue, queue, after, self._known(rule, knowledge), self._kept, last, 0
            )
            ends = np.where(after.finish < 0, last + _HORIZON * (1.0 - after.done), after.finish)
            costs.append(float(ends.sum()))
        return min(costs)

    def _expect(self, forecast: QueueArrays, state: QueueState) -> None:
        """Remember what jobs that run would gain in this slot at the ordinary pace."""
        jobs = state.running[: state.counts[RUNNING]].copy()
        kind, done = forecast.kind[jobs], state.done[jobs]
        ceiling = forecast.ceiling[kind]
        gains = forecast.progress[kind, state.held[jobs, 0], state.held[jobs, 1]]
        gains = gains * np.where(ceiling > 0, np.sqrt(np.maximum(ceiling - done, 0.0)), 1.0)
        gains = gains * np.where(state.changed[jobs], self._kept, 1.0)
        self._before = int(state.counts[SLOT]), jobs, done, gains

    def _learn(self, state: QueueState) -> None:
        """Take the paces of jobs that have run to be what they gained over what they were expected to."""
        # Where slots were skipped it is not known what was expected; nothing has passed after a rehearsal.
        if self._before is None or state.counts[SLOT] != self._before[0] + 1:
            return
        _, jobs, done, gains = self._before
        self._gained[jobs] += state.done[jobs] - done
        self._expected[jobs] += gains
        seen = jobs[self._expected[jobs] > 0]
        self._paces[seen] = np.clip(self._gained[seen] / self._expected[seen], *_PACES)


def _arrived(forecast: QueueArrays, state: QueueState) -> tuple[QueueArrays, QueueState]:
    """The queue without jobs that are to come, which nobody knows, and a copy of its state."""
    count = int(state.counts[ARRIVED])
    queue = forecast._replace(
        **{name: getattr(forecast, name)[:count] for name in ("arrival", "kind", "pace", "reach")}
    )
    own = {name: getattr(state, name)[:count].copy() for name in _OF_JOBS}
    return queue, state._replace(
        counts=state.counts.copy(), free=state.free.copy(), log=np.empty((1, 6), np.int64), **own
    )


def follow_policy(problem: JobProblem, policy: Proposal, last: int) -> QueueState:
    """Simulate a policy slot by slot until all jobs are done or slot `last` is reached.

    Args:
        problem: Jobs and clusters.
        policy: Function that decides in a slot.
        last: Slot at which to stop.

    Raises:
        PlanError: Resizes exceeded the capacity of the log.
    """
    queue, jobs = problem.arrays, len(problem.arrays.arrival)
    state = new_state(queue, _LOG * jobs)
    while state.counts[SLOT] < last:
        arrive(queue, state)
        if state.counts[WAITING] + state.counts[RUNNING]:
            policy(problem.believed, state)
            advance(queue, state, problem.kept)
        elif state.counts[ARRIVED] == jobs:
            break
        else:
            state.counts[SLOT] = queue.arrival[state.counts[ARRIVED]]
    if state.counts[LOGGED] > len(state.log):
        raise PlanError(f"{state.counts[LOGGED]} changes of {jobs} jobs are more than a plan may have")
    return state


_LOG = 256
"""Changes of a job on average that are logged."""
