"""Plans of the learned policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import mean_slots, problem_of, tune
from wirewise.planners.jobs.policy import play
from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights, write_weights
from wirewise.sim import predict
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue

TAPFINGER = PLANNERS["jobs"]["tapfinger"]


def test_a_plan_is_never_expected_to_be_slower_than_the_tuned_rule():
    queue = draw_queue(EVEN, 3.0, jobs=60, seed=40)
    plan = TAPFINGER(queue)
    problem = problem_of(queue)
    ruled = mean_slots([problem], "threshold", tune([problem]))
    assert plan.planner == "tapfinger" and plan.mean_completion_s <= ruled + 1e-9
    assert predict(plan, queue).step_s == plan.predicted_s
    assert "slots on average are expected of the policy" in plan.notes[0]
    assert "the policy was followed in" in plan.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "rate", "most"), [(EVEN, 3.0, 4.3), (UNEVEN, 6.0, 4.9)])
def test_s3_the_policy_alone_is_as_good_as_published(clusters, rate, most):
    problems = [problem_of(draw_queue(clusters, rate, seed=seed), kept=1.0) for seed in range(10)]
    states = play(read_weights(SHIPPED), problems, 2000)
    taken = [(state.finish - one.arrays.arrival).mean() for state, one in zip(states, problems, strict=True)]
    assert min(state.finish.min() for state in states) >= 0 and np.mean(taken) <= most


@pytest.mark.slow
def test_a_policy_that_starts_nothing_is_replaced_or_refused(tmp_path):
    """Jobs that wait for ever end neither the planner nor a plan."""
    network = read_weights(SHIPPED)
    with torch.no_grad():
        # The sixth feature of an amount says that it lets the job wait.
        network.of_option.weight[:, 5] = 100.0
        network.score.weight.fill_(1.0)
    write_weights(network, tmp_path / "idle.npz")
    queue = draw_queue(((8, 8), (8, 8)), jobs=12, seed=1)
    plan = TAPFINGER(queue, weights=str(tmp_path / "idle.npz"))
    ruled = mean_slots([problem_of(queue)], "threshold", tune([problem_of(queue)]))
    assert plan.mean_completion_s <= ruled + 1e-9
    with pytest.raises(PlanError, match="the policy leaves 12 jobs waiting"):
        TAPFINGER(queue, weights=str(tmp_path / "idle.npz"), safe=False)


def test_weights_read_back(tmp_path):
    network = read_weights(SHIPPED)
    write_weights(network, tmp_path / "weights.npz")
    again = read_weights(tmp_path / "weights.npz")
    for name, value in network.state_dict().items():
        assert (again.state_dict()[name] == value).all()


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "weights.npz"
    with pytest.raises(InputError, match=r"weights\.npz.*expected weights by"):
        read_weights(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(InputError, match=r"weights\.npz"):
        TAPFINGER(draw_queue(jobs=4), weights=str(path))
