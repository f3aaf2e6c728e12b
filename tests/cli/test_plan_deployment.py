"""`wirewise plan placement MODEL`: ops of a model on unequal devices."""

import json

import pytest
from typer.testing import CliRunner

from tests.sim.deployment_jobs import random_model
from wirewise.cli.main import app
from wirewise.planners import PLANNERS
from wirewise.plans import DeploymentPlan, load
from wirewise.topology import random_unequal, save
from wirewise.trace import write_stage_trace


@pytest.fixture
def files(tmp_path):
    save(random_unequal(3, hosts=2), tmp_path / "hosts.toml")
    write_stage_trace(random_model(2), tmp_path / "model.json")
    return tmp_path


def call(files, *words):
    words = ["plan", "placement", "--topology", files / "hosts.toml", *words]
    return CliRunner().invoke(app, list(map(str, words)))


def test_a_profile_is_deployed(files):
    words = ["--with", "tag", "--batch", 16, "--groups", 4, "--simulations", 60, "--seed", 5]
    profile = ["--profile", f"v100={files / 'model.json'}"]
    result = call(
        files,
        files / "model.json",
        *words,
        *profile,
        "-o",
        files / "plan.json",
        "--json",
        files / "found.json",
    )
    assert result.exit_code == 0, result.output
    assert "A step of 16 rows on" in result.stdout
    plan, found = load(files / "plan.json"), json.loads((files / "found.json").read_text())
    assert isinstance(plan, DeploymentPlan)
    assert (plan.planner, plan.seed, plan.batch) == ("tag", 5, 16)
    assert set(found) == {"plan", "predicted_step_s", "baseline_step_s", "placements", "planning_s"}
    assert found["predicted_step_s"] == plan.predicted_step_s <= found["baseline_step_s"]
    assert found["placements"] == plan.placements
    for other in ("data-parallel", "baechi"):
        told = call(files, files / "model.json", "--with", other, "--json", "-")
        assert json.loads(told.stdout)["plan"]["planner"] == other


def test_a_model_is_measured_and_deployed(files):
    (files / "net.py").write_text(
        "import torch\n\ndef build():\n    layers = [torch.nn.Linear(8, 8) for _ in range(3)]\n"
        "    return torch.nn.Sequential(*layers), torch.randn(4, 8)\n"
    )
    result = call(files, f"{files / 'net.py'}:build", "--simulations", 30, "--json", "-")
    found = json.loads(result.stdout)
    assert [op for place in found["placements"] for op in place["ops"]] == ["0", "1", "2"]
    assert found["plan"]["planner"] == next(iter(PLANNERS["deployment"]))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "tag"], "--with tag deploys a model"),
        (["model.json", "--steps", 5], "--steps is for tasks of GNN training"),
        (["model.json", "--job-out", "x"], "--job-out is for tasks"),
        (["model.json", "--with", "gnn-tasks"], "MODEL is for planners of models (tag, "),
        (["model.json", "--with", "tog"], "unknown deployment planner 'tog'"),
        (["--batch", 4, "--dataset", "block"], "--batch is for planners of models"),
        (["model.json", "--profile", "v100"], "expected TYPE=FILE"),
        (["model.json", "--with", "baechi", "--weights", "x"], "has no use for weights"),
        (["absent.json"], "absent.json"),
    ],
)
def test_what_does_not_belong_together_is_refused(files, words, message):
    result = call(files, *(files / word if str(word).endswith(".json") else word for word in words))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
