"""Policies that decide slot by slot: what they make of a queue that goes as expected is what their planner planned."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from wirewise.errors import InputError
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import JobProblem
from wirewise.planners.jobs.online import online_policy, planned_policy
from wirewise.planners.jobs.rules import RULES
from wirewise.sim.jobs import draw_queue
from wirewise.sim.jobs.engine import ARRIVED, RUNNING, SLOT, WAITING, advance, arrive, new_state

PROBLEM = JobProblem(draw_queue(((4, 4), (8, 8)), 1.5, jobs=24, seed=3), kept=0.5)


def lived(policy, problem=PROBLEM):
    """Slot in which each job is done when the policy decides in each slot."""
    queue = problem.arrays
    state = new_state(queue, 4000)
    while True:
        arrive(queue, state)
        present = state.counts[WAITING] + state.counts[RUNNING]
        if state.counts[ARRIVED] == len(queue.arrival) and not present:
            return state.finish
        if present:
            policy(queue, state)
        advance(queue, state, problem.kept)
        assert state.counts[SLOT] < 5000


def ends(plan, problem=PROBLEM):
    return np.array([plan.of(one.name)[-1].end for one in problem.queue.queue])


@pytest.mark.sweep
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("random", "min")])
def test_a_rule_online_does_what_it_plans(rule):
    policy, notes = online_policy(PROBLEM, rule)
    assert (lived(policy) == ends(PLANNERS["jobs"][rule](PROBLEM))).all() and not notes


@pytest.mark.parametrize("rule", ["random", "min"])
def test_a_rule_that_draws_gets_all_done(rule):
    assert (lived(online_policy(PROBLEM, rule, seed=1)[0]) > 0).all()


def test_the_learned_policy_online_does_what_it_plans():
    policy, notes = online_policy(PROBLEM, "tapfinger")
    plan = PLANNERS["jobs"]["tapfinger"](PROBLEM)
    assert (lived(policy) == ends(plan)).all() and notes == plan.notes


def test_a_plan_is_followed_and_survives_jobs_that_are_late():
    for rule in ("optimus", "heft"):
        plan = PLANNERS["jobs"][rule](PROBLEM)
        assert (lived(planned_policy(plan, PROBLEM)) == ends(plan)).all()
        late = tuple(msgspec.structs.replace(job, pace=0.6) for job in PROBLEM.queue.queue)
        slow = JobProblem(msgspec.structs.replace(PROBLEM.queue, queue=late), kept=0.5)
        assert (lived(planned_policy(plan, slow), slow) >= ends(plan)).all()


def test_an_unknown_planner_is_refused():
    with pytest.raises(InputError, match="planner is 'hope'; expected tapfinger or one of: random"):
        online_policy(PROBLEM, "hope")
