"""Placements carried out: what a job may ask for, what is compared, and the whole way in a lab."""

import pytest

from wirewise.errors import InputError
from wirewise.planners.placement import plan
from wirewise.recipes.gnn_tasks import Job, Measured, compare, lab_problem, run
from wirewise.sim.flows import random_tasks

LINKS = ("200mbit", "50mbit")


@pytest.fixture(scope="module")
def job():
    tasks = random_tasks(
        hosts=2, workers=2, samplers=1, iterations=3, batch_bytes=3e5, gradient_bytes=3e4, worker_s=0.01
    )
    problem = lab_problem(tasks, LINKS)
    plans = {name: plan(problem, method=name, steps=100) for name in ("colocated", "gnn-tasks")}
    return Job(tasks=tasks, links=LINKS, plans=plans, turns=2)


def test_a_job_that_cannot_be_carried_out_is_refused(job):
    with pytest.raises(InputError, match="plan 'colocated' is for 2 hosts; expected 3"):
        Job(tasks=job.tasks, links=("50mbit",) * 3, plans=job.plans)
    for setting in ({"turns": 0}, {"plans": {}}, {"timeout_s": 0.0}):
        with pytest.raises(InputError, match="expected one or more of both"):
            Job(**{"tasks": job.tasks, "links": LINKS, "plans": job.plans, **setting})


def test_seconds_of_an_iteration_are_compared(job):
    measured = {
        name: [Measured(start_s=[0.0], end_s=[end, end / 2]) for end in (0.9, 0.3, 0.6)] for name in job.plans
    }
    for name, one in compare(job, measured).items():
        assert one.all_s == pytest.approx((0.3, 0.1, 0.2))
        assert one.measured_s == pytest.approx(0.2)
        assert one.simulated_s == pytest.approx(job.plans[name].predicted_s / 3)
        assert one.error == pytest.approx(one.simulated_s / 0.2 - 1)


@pytest.mark.lab
@pytest.mark.slow
def test_p6_the_whole_way(job, tmp_path):
    said = []
    found = run(job, tmp_path, said.append)
    assert set(found) == set(job.plans)
    assert [line.split(":")[0] for line in said] == ["colocated", "gnn-tasks"] * 2
    for one in found.values():
        assert len(one.all_s) == 2
        assert all(0 < seconds < job.timeout_s for seconds in one.all_s)
