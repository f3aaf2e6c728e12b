"""Looking ahead: never worse than rules where they differ, paces that show, jobs to come that are not known."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.errors import PlanError
from wirewise.planners.jobs import lookahead
from wirewise.planners.jobs.lookahead import LOOKED_AT, PROPOSED, TUNED, LookAhead, follow_policy
from wirewise.planners.jobs.problem import JobProblem, simulate_rule, tune
from wirewise.planners.jobs.rules import expected_queue, knowledge
from wirewise.sim.jobs import EVEN, draw_queue
from wirewise.sim.jobs.engine import RUNNING, advance, allot, arrive, new_state, start
from wirewise.trace import EdgeCluster, JobKind, JobQueue, QueuedJob


def mean_slots(problem, state):
    return float((state.finish - problem.arrays.arrival).mean())


def test_s4_paces_that_spread_are_made_use_of():
    """Shorter than the best rule on each of some queues together, with amounts tuned on other queues for both."""
    others = [JobProblem(draw_queue(EVEN, 2.5, jobs=96, seed=seed + 500), 1.0) for seed in range(3)]
    tuned = {rule: tune(others, rule) for rule in TUNED}
    ahead, ruled = [], {rule: [] for rule in LOOKED_AT}
    for seed in range(3):
        problem = JobProblem(draw_queue(EVEN, 2.5, jobs=96, noise=0.5, seed=seed), 1.0)
        usual = knowledge(expected_queue(problem.arrays))
        ahead.append(
            mean_slots(problem, follow_policy(problem, LookAhead(problem, tuned=tuned).decide, 3000))
        )
        for rule, found in ruled.items():
            found.append(mean_slots(problem, simulate_rule(problem, rule, tuned.get(rule, usual))))
    assert np.mean(ahead) < min(np.mean(found) for found in ruled.values())


def test_paces_are_learnt_from_progress():
    problem = JobProblem(draw_queue(((8, 8),), 0.2, jobs=6, noise=0.6, seed=2), 1.0)
    policy = LookAhead(problem)
    follow_policy(problem, policy.decide, 3000)
    seen = policy._expected > 0
    slow = seen & (problem.arrays.pace > 0.25) & (problem.arrays.pace < 4)
    # What ends within its first slot was never looked at again.
    assert slow.sum() >= 4 and policy._paces[slow] == pytest.approx(problem.arrays.pace[slow])


def test_jobs_to_come_and_paces_are_not_known():
    """Two queues that differ in what nobody can know yet have the same first decision."""
    first = []
    for queue in (draw_queue(EVEN, 6.0, jobs=8, seed=4), draw_queue(EVEN, 6.0, jobs=40, seed=4, noise=0.0)):
        problem = JobProblem(queue, 1.0)
        state = new_state(problem.arrays)
        arrive(problem.arrays, state)
        state.counts[0] = 0
        LookAhead(problem, tuned={rule: knowledge(problem.believed) for rule in TUNED}).decide(
            problem.believed, state
        )
        first.append({job: tuple(state.held[job]) for job in state.running[: state.counts[3]].tolist()})
    assert first[0] and first[0] == {job: first[1][job] for job in first[0]}


def test_a_rehearsal_teaches_nothing():
    problem = JobProblem(draw_queue(EVEN, 2.0, jobs=12, seed=1), 1.0)
    policy = LookAhead(problem)
    for _ in range(2):
        state = new_state(problem.arrays)
        arrive(problem.arrays, state)
        policy.decide(problem.believed, state)
        assert state.counts[RUNNING]
    assert (policy._paces == 1).all()
    advance(problem.arrays, state, 1.0)
    policy.decide(problem.believed, state)
    assert policy._paces == pytest.approx(1.0)


def test_a_proposal_is_followed_where_it_is_as_good_and_left_where_it_waits():
    problem = JobProblem(draw_queue(((8, 8), (8, 8)), jobs=12, seed=1), 1.0)
    idle = LookAhead(problem, lambda queue, state: None)
    assert (follow_policy(problem, idle.decide, 3000).finish > 0).all()
    assert idle.followed.total() > idle.followed[PROPOSED]


def test_more_changes_than_a_plan_may_have_are_refused(monkeypatch):
    monkeypatch.setattr(lookahead, "_LOG", 1)
    problem = JobProblem(draw_queue(((8, 8),), jobs=12, seed=1), 1.0)
    turns = iter(range(100000))

    def restless(queue, state):
        lookahead.decide_once(next(turns) % 2 + 8, queue, state, knowledge(queue), 0)

    with pytest.raises(PlanError, match="changes of 12 jobs are more"):
        follow_policy(problem, restless, 3000)


def test_what_a_resize_costs_is_not_taken_for_a_pace():
    """A job at the ordinary pace that is given another amount in each slot has the ordinary pace."""
    row = tuple(0.01 * g for g in range(5))
    queue = JobQueue(
        queue=(QueuedJob(name="a", kind="k", arrival=0),),
        kinds={"k": JobKind(progress=((0.0,) * 5, row), gpus=1)},
        clusters=(EdgeCluster(name="c", cpus=4, gpus=4),),
    )
    problem = JobProblem(queue, kept=0.5)
    policy, state = LookAhead(problem), new_state(problem.arrays)
    arrive(problem.arrays, state)
    start(state, 0, 0, 1, 2)
    for slot in range(6):
        if slot:
            allot(state, 0, 1, 2 + slot % 2)
        policy._expect(problem.believed, state)
        advance(problem.arrays, state, problem.kept)
        policy._learn(state)
    assert policy._paces[0] == pytest.approx(1.0, rel=1e-12)
