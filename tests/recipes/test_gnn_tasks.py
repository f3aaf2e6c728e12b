"""Placements carried out: what a job may ask for, what is compared, and the whole way in a lab."""

import msgspec
import numpy as np
import pytest

from wirewise.errors import InputError
from wirewise.planners.placement import plan
from wirewise.recipes.gnn_tasks import Job, OpTimes, compare, lab_problem, run
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
    ops = job.tasks.iterations * (len(job.tasks.tasks) + len(job.tasks.flows))
    measured = {
        name: [OpTimes(start_s=[0.0] * ops, end_s=[end / 2] * (ops - 1) + [end]) for end in (0.9, 0.3, 0.6)]
        for name in job.plans
    }
    for name, one in compare(job, measured).items():
        assert one.all_s == pytest.approx((0.3, 0.1, 0.2))
        assert one.measured_s == pytest.approx(0.2)
        assert one.simulated_s == pytest.approx(job.plans[name].predicted_s / 3)
        assert one.error == pytest.approx(one.simulated_s / 0.2 - 1)


def test_each_task_and_each_flow_between_hosts_has_its_times(job):
    """Measured as simulated, but for the second iteration of one flow."""
    simulator = lab_problem(job.tasks, LINKS).simulator
    name, plan = "colocated", job.plans["colocated"]
    places = np.array([plan.places[task.name] for task in job.tasks.tasks])
    fluid, steps = simulator.run(places, plan.policy), job.tasks.iterations
    late = simulator.lines.index(("flow", "store1 to sampler0.0")) * steps + 1
    ends = fluid.end_s.copy()
    ends[late] += 0.25
    measured = {name: [OpTimes(start_s=fluid.start_s.tolist(), end_s=ends.tolist())]}
    found = compare(msgspec.structs.replace(job, plans={name: plan}), measured)[name]
    assert {line.kind for line in found.lines} == {"sampler", "worker", "server", "flow"}
    crossing = {
        f"{flow.source} to {flow.target}"
        for flow in job.tasks.flows
        if plan.places[flow.source] != plan.places[flow.target]
    }
    assert {line.name for line in found.lines if line.kind == "flow"} == crossing
    assert found.latest("flow").name == "store1 to sampler0.0"
    assert found.latest("flow").late_s == pytest.approx((0.0, 0.25, 0.0))
    assert found.latest("flow").simulated.start_s == fluid.start_s[late - 1 : late + 2].tolist()
    assert found.latest("worker").late_s == pytest.approx((0.0,) * steps)
    assert found.latest("store") is None


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
