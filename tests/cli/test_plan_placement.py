"""`wirewise plan placement`."""

import json

import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.plans import PlacementPlan, load
from wirewise.topology import lab_hosts, save

GRAPH = "block:nodes=2000,classes=4,features=8"


@pytest.fixture
def hosts(tmp_path):
    save(lab_hosts(["400mbit", "50mbit", "400mbit"]), tmp_path / "hosts.toml")
    return tmp_path / "hosts.toml"


def call(hosts, *words):
    return CliRunner().invoke(app, ["plan", "placement", "--topology", str(hosts), *map(str, words)])


def test_a_dataset_is_placed_without_a_run(hosts, tmp_path):
    words = [
        "--dataset",
        GRAPH,
        "--fanouts",
        "5,3",
        "--batch-size",
        32,
        "--steps",
        200,
        "--with",
        "gnn-tasks",
    ]
    files = [
        "-o",
        tmp_path / "plan.json",
        "--job-out",
        tmp_path / "job.json",
        "--json",
        tmp_path / "found.json",
    ]
    result = call(hosts, *words, *files)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("8 iterations of 13 tasks on 3 hosts take ")
    assert "Whatever the sizes, oes takes at most" in result.stdout
    plan = load(tmp_path / "plan.json")
    assert isinstance(plan, PlacementPlan)
    assert plan.hosts == ("host0", "host1", "host2")
    check = ["check", tmp_path / "plan.json", "--topology", hosts, "--job", tmp_path / "job.json"]
    checked = CliRunner().invoke(app, [str(word) for word in check])
    assert checked.exit_code == 0, checked.output
    found = json.loads((tmp_path / "found.json").read_text())["simulated"]
    assert set(found) == {"gnn-tasks", "colocated", "store-affine", "random"}
    assert found["gnn-tasks"]["iter"] == plan.predicted_s
    assert found["gnn-tasks"]["iter"] <= found["colocated"]["iter"] == plan.colocated_s


def test_a_job_file_and_json_alone(hosts, tmp_path):
    job = {
        "iterations": 2,
        "tasks": [
            {"name": "g", "kind": "store", "host": "host1"},
            {"name": "s", "kind": "sampler", "worker": "w", "execution_s": 0.01},
            {"name": "w", "kind": "worker", "execution_s": [0.1, 0.2], "demand": {"gpu": 1}},
        ],
        "flows": [
            {"source": "g", "target": "s", "size_bytes": 1e6},
            {"source": "s", "target": "w", "size_bytes": 5e5},
        ],
        "hosts": {"host0": {"gpu": 1}, "host2": {"gpu": 1}},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    found = json.loads(call(hosts, "--job", tmp_path / "job.json", "--policy", "oes", "--json", "-").stdout)
    places = {task["name"]: task["host"] for task in found["plan"]["tasks"]}
    # The worker cannot run at the slow store; its sampler, which makes less of what it reads, can.
    assert places["g"] == places["s"] == 1 and places["w"] in (0, 2)
    assert found["plan"]["policy"] == "oes"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give --job FILE with tasks and flows, or --dataset"),
        (["--dataset", GRAPH, "--policy", "best"], "--policy is 'best'; expected one of: iter, "),
        (["--dataset", GRAPH, "--with", "best"], "unknown placement planner 'best'"),
        (["--dataset", GRAPH, "--fanouts", "x"], "--fanouts is 'x'"),
        (["--job", "missing.json"], "cannot read task file 'missing.json'"),
    ],
)
def test_options_that_cannot_be_used(hosts, words, told):
    result = call(hosts, *words)
    assert result.exit_code != 0
    assert told in f"{result.output} {result.exception}"
