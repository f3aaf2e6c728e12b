"""Plans of the learned policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import mean_slots, problem_of, tapfinger, tune
from wirewise.planners.jobs.lookahead import LOOKED_AT
from wirewise.planners.jobs.policy import run_episodes
from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights, write_weights
from wirewise.sim import predict
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue
from wirewise.trace import EdgeCluster, JobKind, JobQueue, QueuedJob

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


def stepped(most, least=1):
    """A kind that splits over powers of two, and makes no progress with other numbers of accelerators."""
    row = tuple(0.1 * g**0.9 if g in (least, 2 * least, 4 * least) and g <= most else 0.0 for g in range(9))
    return JobKind(progress=((0.0,) * 9, row), cpus=1, gpus=least)


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_planned_and_no_rule_alone_is_better(seed):
    kinds = {"a": stepped(4), "b": stepped(8, least=2)}
    queue = draw_queue(((4, 8), (8, 6)), 1.5, jobs=24, kinds=kinds, seed=seed)
    plans = {name: make(queue) for name, make in PLANNERS["jobs"].items()}
    best = min(plans[rule].mean_completion_s for rule in LOOKED_AT)
    assert plans["tapfinger"].mean_completion_s <= 1.02 * best
    assert predict(plans["random"], queue).step_s == plans["random"].predicted_s


@pytest.mark.parametrize("planner", PLANNERS["jobs"])
def test_patience_bounds_the_wait(planner):
    """One cluster that short jobs keep busy, and a long one that needs all of it."""
    short, long = ((0.0,) * 5, (0.0, *(0.5,) * 4)), ((0.0,) * 5, (0.0, 0.0, 0.0, 0.0, 0.25))
    kinds = {"short": JobKind(progress=short, gpus=1), "long": JobKind(progress=long, gpus=4)}
    jobs = [QueuedJob(name="long", kind="long", arrival=0)]
    jobs += [QueuedJob(name=f"s{n}", kind="short", arrival=n // 3) for n in range(60)]
    queue = JobQueue(queue=tuple(jobs), kinds=kinds, clusters=(EdgeCluster(name="c", cpus=4, gpus=4),))
    waits = []
    for patience in (0, 6):
        plan = PLANNERS["jobs"][planner](queue, patience=patience)
        waits.append(min(one.start for one in plan.allotments if one.job == "long"))
    # Those that run when its time comes end within two slots of theirs.
    assert waits[1] <= 6 + 2 and waits[1] <= max(waits[0], 6)
    if planner != "tapfinger":
        return
    assert waits[0] > 20
    with pytest.raises(InputError, match="patience of 6 slots and safe=False"):
        PLANNERS["jobs"][planner](queue, patience=6, safe=False)


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "rate", "most"), [(EVEN, 3.0, 4.3), (UNEVEN, 6.0, 4.9)])
def test_s3_the_policy_alone_is_as_good_as_published(clusters, rate, most):
    problems = [problem_of(draw_queue(clusters, rate, seed=seed), kept=1.0) for seed in range(10)]
    states = run_episodes(read_weights(SHIPPED), problems, 2000)
    taken = [(state.finish - one.arrays.arrival).mean() for state, one in zip(states, problems, strict=True)]
    assert min(state.finish.min() for state in states) >= 0 and np.mean(taken) <= most
    tuned = tune([problem_of(draw_queue(clusters, rate, seed=100 + seed), kept=1.0) for seed in range(10)])
    assert np.mean(taken) <= mean_slots(problems, "threshold", tuned)


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


def test_a_plan_is_made_on_one_thread_and_the_callers_number_comes_back(monkeypatch):
    """Threads of torch that wait for each other took most of the time of a plan."""
    used, read = [], tapfinger.read_weights

    def noting(path):
        used.append(torch.get_num_threads())
        return read(path)

    monkeypatch.setattr(tapfinger, "read_weights", noting)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        tapfinger.plan_tapfinger(problem_of(draw_queue(jobs=4)))
        assert (used, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


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
