"""Plans of queues of jobs."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import JobProblem, mean_slots, problem_of, tune
from wirewise.planners.jobs.rules import expected_queue, knowledge
from wirewise.sim import predict
from wirewise.sim.jobs import draw_queue

QUEUE = draw_queue(((8, 8), (16, 4)), 2.0, jobs=40, seed=7)


@pytest.mark.parametrize("name", ["heft", "threshold", "optimus", "gavel"])
def test_a_plan_says_what_its_queue_then_takes(name):
    plan = PLANNERS["jobs"][name](QUEUE, seed=1)
    found = predict(plan, QUEUE)
    assert found.step_s == plan.predicted_s and plan.planner == name
    ends = {one.job: one.end for one in plan.allotments}
    taken = [ends[job.name] - job.arrival for job in QUEUE.queue]
    assert plan.mean_completion_s == pytest.approx(np.mean(taken))


def test_tuning_is_never_worse_than_what_is_quickest_for_each():
    for rule in ("threshold", "tiresias"):
        problems = [problem_of(draw_queue(((8, 8), (16, 4)), 2.0, jobs=40, seed=seed)) for seed in range(4)]
        untuned = mean_slots(problems, rule, knowledge(expected_queue(problems[0].arrays)))
        assert mean_slots(problems, rule, tune(problems, rule)) <= untuned


def test_stops_and_moves_cost_what_they_are_said_to():
    free, dear = (PLANNERS["jobs"]["optimus"](QUEUE, kept=kept) for kept in (1.0, 0.0))
    assert free.mean_completion_s < dear.mean_completion_s and (free.kept, dear.kept) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (
            lambda: PLANNERS["jobs"]["heft"](QUEUE, Links.uniform(2, 1e9)),
            InputError,
            "got a Links beside a queue",
        ),
        (lambda: PLANNERS["jobs"]["heft"](None), InputError, "a queue of jobs"),
        (lambda: JobProblem(QUEUE, kept=1.5), InputError, "kept 1.5"),
        (lambda: JobProblem(QUEUE, window=0), InputError, "a window of 0"),
        (lambda: PLANNERS["jobs"]["heft"](QUEUE, time_budget_s=1.0), PlanError, "no search that time"),
    ],
)
def test_what_cannot_be_planned_is_named(ask, error, said):
    with pytest.raises(error, match=said):
        ask()
