"""`wirewise check` and `wirewise show` of plans without a program."""

import json

import pytest
from benchmarks.random_tasks import random_tasks
from typer.testing import CliRunner

from tests.trace.test_operator_graph import GOOD
from wirewise.cli.main import app
from wirewise.planners.placement import PLANNERS, problem_of
from wirewise.plans import BitWidthPlan, ChannelBits, ParallelPlan, save
from wirewise.topology import lab_hosts
from wirewise.topology import save as save_topology
from wirewise.trace import write_operator_graph, write_tasks


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def files(tmp_path):
    """A placement, its job, its hosts."""
    tasks = random_tasks(hosts=2, workers=2, samplers=1, iterations=2)
    hosts = lab_hosts(["400mbit", "50mbit"])
    save_topology(hosts, tmp_path / "hosts.toml")
    write_tasks(tasks, tmp_path / "job.json")
    save(PLANNERS["colocated"](problem_of(tasks, hosts)), tmp_path / "plan.json")
    return tmp_path


def test_a_placement_is_right_alone_and_with_its_job_and_hosts(files):
    alone = call("check", files / "plan.json")
    assert (alone.exit_code, alone.stdout.count("it is right")) == (0, 1), alone.output
    assert "placement plan by 'colocated' for 2 hosts: 2 iterations take" in alone.stdout
    on, job = ("--topology", files / "hosts.toml"), ("--job", files / "job.json")
    for options in (on, job, (*on, *job)):
        result = call("check", files / "plan.json", *options)
        assert result.exit_code == 0, result.output
        assert all(str(word) in result.stdout for word in options[1::2])
    found = json.loads(call("check", files / "plan.json", *on, *job, "--json", "-").stdout)
    assert (found["verdict"], found["right"], found["faults"]) == ("right", True, [])


def test_faults_are_named_and_exit_with_1(files):
    other = random_tasks(hosts=2, workers=1, samplers=1, iterations=2)
    write_tasks(other, files / "other.json")
    save_topology(lab_hosts(["400mbit", "400mbit"]), files / "faster.toml")
    job = ("--job", files / "job.json")
    for options, told in (
        (("--topology", "lab-3"), "world size 2, the topology has 3 hosts"),
        (("--job", files / "other.json"), "unknown to the job: sampler1.0, worker1"),
        (
            ("--topology", files / "hosts.toml", "--job", files / "other.json"),
            "unknown to the job: sampler1.0",
        ),
        (("--topology", files / "faster.toml", *job), "at `$.predicted_s`, simulating the plan gives"),
    ):
        result = call("check", files / "plan.json", *options)
        assert result.exit_code == 1, result.output
        assert told in result.stdout
        found = json.loads(call("check", files / "plan.json", *options, "--json", "-").stdout)
        assert not found["right"] and told in found["faults"][0]
        assert found["verdict"] == "wrong" and found["reason"] == found["faults"][0]


def test_plans_of_other_families_are_checked_against_a_topology(tmp_path):
    channel = ChannelBits(exchange="forward1", sender=0, receiver=1, width=4, bits=bytes([8]))
    save(BitWidthPlan(world_size=2, planner="uniform", channels=(channel,)), tmp_path / "p.json")
    assert "bitwidth plan by 'uniform' for 2 ranks; it is right" in call("check", tmp_path / "p.json").stdout
    assert call("check", tmp_path / "p.json", "--topology", "lab-3").exit_code == 1
    refused = call("check", tmp_path / "p.json", "--job", tmp_path / "p.json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "got --job for a plan of bitwidth" in refused.stderr


def test_a_parallel_plan_that_lacks_an_entry_is_found_by_its_graph(tmp_path):
    write_operator_graph(GOOD, tmp_path / "graph.json")
    nodes = len(GOOD.nodes)
    for name, count in (("whole", nodes), ("short", nodes - 1)):
        plan = ParallelPlan(
            world_size=2,
            planner="by hand",
            graph=GOOD.digest,
            mesh=(2,),
            mesh_names=("model",),
            ranks=((0, 1),),
            stage_of=(0,) * count,
            placements=(("R",),) * count,
        )
        save(plan, tmp_path / f"{name}.json")
        alone = call("check", tmp_path / f"{name}.json")
        assert "right in itself; --job compares it with its graph" in alone.stdout, alone.output
    right = call("check", tmp_path / "whole.json", "--job", tmp_path / "graph.json")
    assert right.exit_code == 0 and "it is right and fits" in right.stdout, right.output
    short = call("check", tmp_path / "short.json", "--job", tmp_path / "graph.json")
    assert short.exit_code == 1
    assert f"has {nodes - 1} entries - at `$.placements`" in short.stdout


def test_an_inconsistent_plan_is_refused(files):
    text = (files / "plan.json").read_text().replace('"host":1', '"host":7')
    (files / "plan.json").write_text(text)
    result = call("check", files / "plan.json")
    assert result.exit_code == 2
    assert "host is 7; expected 0 to 1" in result.stderr


def test_a_placement_is_shown(files):
    lines = call("show", files / "plan.json").stdout.splitlines()
    assert lines[0] == "host\tstores\tsamplers\tworkers\tservers"
    assert lines[1].startswith("host0\tstore0\tsampler0.0\tworker0")
    assert len(lines) == 3
