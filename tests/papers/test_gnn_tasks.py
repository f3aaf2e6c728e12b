"""Placements carried out: what a job may ask for, what is compared, and the whole way in a lab."""

import json

import msgspec
import numpy as np
import pytest
from benchmarks.random_tasks import random_tasks
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.planners.placement import PLANNERS
from wirewise.plans import load
from wirewise.sim.flows.measured import OpTimes
from wirewise.trace import write_tasks
from wirewise_papers.gnn_tasks.experiment import GnnTasks
from wirewise_papers.gnn_tasks.planning import (
    GnnTasksOptions,
    PlacementJob,
    compare,
    lab_problem,
    make_job,
    summarise,
)
from wirewise_papers.interleaved import plan_file

LINKS = ("200mbit", "50mbit")


@pytest.fixture(scope="module")
def job():
    tasks = random_tasks(
        hosts=2, workers=2, samplers=1, iterations=3, batch_bytes=3e5, gradient_bytes=3e4, worker_s=0.01
    )
    problem = lab_problem(tasks, LINKS)
    plans = {name: PLANNERS[name](problem, steps=100) for name in ("colocated", "gnn-tasks")}
    return PlacementJob(tasks=tasks, links=LINKS, plans=plans, turns=2)


def test_a_job_that_cannot_be_carried_out_is_refused(job):
    with pytest.raises(InputError, match="plan 'colocated' is for 2 hosts; expected 3"):
        PlacementJob(tasks=job.tasks, links=("50mbit",) * 3, plans=job.plans)
    for setting, told in (
        ({"turns": 0}, "turns is 0; expected at least 1"),
        ({"plans": {}}, "got no plan; expected one or more"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; expected a finite number above 0"),
    ):
        with pytest.raises(InputError, match=told):
            PlacementJob(**{"tasks": job.tasks, "links": LINKS, "plans": job.plans, **setting})


def test_a_policy_that_chunks_cannot_follow_is_refused(job):
    plans = {"sorted": msgspec.structs.replace(job.plans["colocated"], policy="mrtf")}
    with pytest.raises(
        InputError, match=r"plan 'sorted' shares links under 'mrtf', .* expected one of: iter, "
    ):
        PlacementJob(tasks=job.tasks, links=LINKS, plans=plans)


def test_every_method_is_planned_under_every_policy(job):
    wish = GnnTasksOptions(
        hosts=2, links={1: "50mbit"}, link="200mbit", methods=("random", "gnn-tasks"), steps=20
    )
    assert (wish.rates, wish.names) == (LINKS, ("host0", "host1"))
    made = make_job(wish, job.tasks)
    assert list(made.plans) == ["random:iter", "gnn-tasks:iter", "random:oes", "gnn-tasks:oes"]
    for name, one in made.plans.items():
        assert (one.planner, one.policy) == tuple(name.split(":"))
        alone = PLANNERS[one.planner](
            lab_problem(job.tasks, LINKS), policy=one.policy, steps=wish.steps, seed=0
        )
        assert one == alone


def test_plans_are_compared_with_the_first(job):
    """Measured as simulated, but the second plan takes half the time."""
    measured = {}
    for scale, (name, one) in zip((1.0, 0.5), job.plans.items(), strict=True):
        places = np.array([one.places[task.name] for task in job.tasks.tasks])
        fluid = lab_problem(job.tasks, LINKS).simulator.run(places, one.policy)
        measured[name] = [OpTimes(start_s=fluid.start_s.tolist(), end_s=(scale * fluid.end_s).tolist())]
    found = summarise(job, compare(job, measured))
    first, second = found.plans.values()
    assert (found.fastest, found.links, found.iterations) == ("gnn-tasks", LINKS, 3)
    assert (first.simulated_gain, first.measured_gain, first.error) == pytest.approx((0.0, 0.0, 0.0))
    assert second.error == pytest.approx(1.0)
    assert second.measured_gain == pytest.approx(1 - second.measured_s / first.measured_s)
    assert second.simulated_gain == pytest.approx(1 - second.simulated_s / first.simulated_s)
    assert first.lower_bound_s <= first.simulated_s
    places = job.plans["colocated"].places
    crossing = [flow for flow in job.tasks.flows if places[flow.source] != places[flow.target]]
    sizes = [np.mean(job.tasks.numbers(flow.size_bytes)) for flow in crossing]
    assert first.crossing_bytes == pytest.approx(sum(sizes))
    assert first.latest["worker"][1] == pytest.approx(0.0)
    assert set(second.latest) == {"sampler", "worker", "server", "flow"} and second.latest["worker"][1] < 0


def call(*words):
    return CliRunner().invoke(app, ["run", "gnn-tasks", *map(str, words)])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hosts", 1], "--hosts is 1; expected at least 2"),
        (["--link", "fast"], "rate 'fast' is not understood"),
        (["--links", "4=1gbit"], "links name host 4; expected hosts 0 to 3"),
        (["--links", "1gbit"], "link '1gbit' is not understood"),
        (["--methods", "best"], "--methods is 'best'; expected some of: gnn-tasks, colocated"),
        (["--methods", ","], "--methods is ','; expected some of: gnn-tasks"),
        (
            ["--methods", "random,random"],
            "--methods is 'random,random'; expected some of: gnn-tasks, ",
        ),
        (["--policies", "iter,mrtf"], "--policies is 'iter,mrtf'; expected some of: iter, fifo"),
        (["--policies", ""], "--policies is ''; expected some of: iter"),
        (["--steps", -1], "--steps is -1; expected at least 0"),
        (["--turns", 0], "--turns is 0; expected at least 1"),
        (["--seed", -1], "--seed is -1; expected at least 0"),
        (["--timeout", "nan"], "--timeout is nan; expected a finite number above 0"),
        ([], "give --job FILE with tasks and flows, or --dataset NAME to expect them; not both"),
        (
            ["--job", "a.json", "--dataset", "debian"],
            "give --job FILE with tasks and flows, or --dataset NAME",
        ),
        (["--job", "absent.json"], "cannot read task file 'absent.json'"),
        (["--job", "a.json", "--iterations", 3], "--iterations is for --dataset"),
        (["--dataset", "absent.npz"], "absent.npz"),
        (["--dataset", "block:nodes=200,classes=4,features=8", "--fanouts", "x"], "--fanouts is 'x'"),
        (["--dataset", "block:nodes=200,classes=4,features=8", "--volumes", "x"], "'x'"),
        (["--iterations", 0], "--iterations"),
    ],
)
def test_what_cannot_be_used_is_named(words, told, tmp_path):
    found = call(*words, "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert told in " ".join(found.output.split())
    assert not (tmp_path / "run").exists()


def test_tasks_of_other_hosts_are_refused(tmp_path):
    write_tasks(random_tasks(hosts=3, workers=2), tmp_path / "job.json")
    found = call("--job", tmp_path / "job.json", "--hosts", 2, "--out", tmp_path / "run")
    assert "there is no host 'host2'; expected one of: host0, host1" in found.output


@pytest.mark.lab
def test_the_command_from_end_to_end(job, tmp_path):
    write_tasks(job.tasks, tmp_path / "job.json")
    words = ["--job", tmp_path / "job.json", "--hosts", 2, "--link", LINKS[0], "--links", f"1={LINKS[1]}"]
    short = ["--methods", "colocated,gnn-tasks", "--policies", "iter", "--steps", 50, "--turns", 1]
    found = call(*words, *short, "--out", tmp_path / "run", "--json", "-")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert list(result["plans"]) == ["colocated:iter", "gnn-tasks:iter"]
    assert result["links"] == list(LINKS) and "slept" in result["emulated"]
    for name, one in result["plans"].items():
        assert one["measured_s"] > 0
        saved = load(plan_file(tmp_path / "run", name))
        assert one["simulated_s"] == pytest.approx(saved.predicted_s / 3)
        assert f"{name}: " in found.stderr and "ms a run and its start, median" in found.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert "is the fastest of 2 plans" in (tmp_path / "run" / "report.html").read_text()


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
    found = GnnTasks().execute_plans(job, tmp_path, said.append)
    assert set(found) == set(job.plans)
    assert [line.split(":")[0] for line in said] == ["colocated", "gnn-tasks", "gnn-tasks", "colocated"]
    for one in found.values():
        assert len(one.all_s) == 2
        assert all(0 < seconds < job.timeout_s for seconds in one.all_s)
