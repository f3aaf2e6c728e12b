"""`wirewise profile stages`, `wirewise plan pipeline`, and what else takes such plans."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.planners.pipeline.problems import random_trace
from wirewise import planners
from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.plans import StagePlan, load
from wirewise.topology import lab_hosts
from wirewise.topology import load as load_topology
from wirewise.topology import save as save_topology
from wirewise.trace import read_stage_trace, write_stage_trace

MODEL = """
import torch
from torch import nn

def small():
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))), torch.randn(4, 16)

def nothing():
    return 3
"""

SKIPPING = """
class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle, self.deep = (nn.Linear(8, 8) for _ in range(3))
        self.up = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.tanh(self.down(x))
        return self.up(torch.cat([x, self.deep(self.middle(x))], dim=1))

def skipping():
    return Skipping(), torch.randn(4, 8)
"""


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def files(tmp_path):
    """Measured modules, a topology of four hosts, and where the plan goes."""
    write_stage_trace(random_trace(3, 8), tmp_path / "modules.json")
    save_topology(lab_hosts(["1mbit"] * 4), tmp_path / "four.toml")
    return tmp_path / "modules.json", tmp_path / "four.toml", tmp_path / "plan.json"


def test_a_plan_is_what_its_planner_makes(files):
    job, four, out = files
    words = ("--topology", four, "--batch", 32, "--memory", "35000", "--with", "two-bw", "-o", out)
    done = call("plan", "pipeline", job, *words, "--json", out.with_suffix(".found"))
    assert done.exit_code == 0, done.output
    links = Links.of(load_topology(four))
    plan = load(out)
    assert plan == planners.PLANNERS["stages"]["two-bw"](
        read_stage_trace(job), links, batch=32, memory_bytes=35000
    )
    assert "An update of 32 samples takes" in done.stdout and "Note: " in done.stdout
    found = json.loads(out.with_suffix(".found").read_text())
    assert found["predicted_s"] == plan.predicted_s and 0 <= found["bubble"] < 1
    assert StagePlan.from_json(json.dumps(found["plan"])) == plan


def test_what_is_chosen_already_is_kept(files):
    job, four, out = files
    words = ("--topology", four, "--batch", 16, "--stages", 4, "--microbatch-size", 2, "--recompute", "yes")
    done = call("plan", "pipeline", job, *words, "--with", "eager", "-o", out)
    assert done.exit_code == 0, done.output
    plan = load(out)
    assert len(plan.stages) == 4 and plan.microbatch_size == 2 and all(s.recompute for s in plan.stages)
    refused = call("plan", "pipeline", job, "--topology", four, "--batch", 16, "--stages", 3)
    assert refused.exit_code == 2 and "no plan has stages 3" in refused.output


def test_other_commands_take_it(files):
    job, four, out = files
    call(
        "plan", "pipeline", job, "--topology", four, "--batch", 16, "--stages", 4, "--with", "1f1b", "-o", out
    )
    plan = load(out)
    done = call("sim", job, "--plan", out, "--topology", four)
    assert done.exit_code == 0 and "update of 4 ranks under the stages plan by '1f1b'" in done.stdout
    assert f"takes {plan.predicted_s * 1e3:.3f} ms" in done.stdout
    assert call("check", out, "--topology", four).exit_code == 0
    assert "F0 F1 F2 F3 B0" in call("show", out).stdout
    assert "Choose a stages plan" not in call("plan", "--help").stdout


def test_a_model_is_measured(tmp_path, files):
    (tmp_path / "model.py").write_text(MODEL)
    done = call(
        "profile",
        "stages",
        f"{tmp_path}/model.py:small",
        "--sizes",
        "1,4",
        "--repeats",
        1,
        "-o",
        tmp_path / "m.json",
    )
    assert done.exit_code == 0, done.output
    assert "6 modules on cpu" in done.stdout
    assert read_stage_trace(tmp_path / "m.json").sizes == (1, 4)
    planned = call("plan", "pipeline", f"{tmp_path}/model.py:small", "--topology", files[1], "--batch", 8)
    assert planned.exit_code == 0, planned.output


def test_a_model_with_a_forward_pass_of_its_own_is_measured(tmp_path, files):
    (tmp_path / "model.py").write_text(MODEL + SKIPPING)
    done = call(
        "plan",
        "pipeline",
        f"{tmp_path}/model.py:skipping",
        "--topology",
        files[1],
        "--stages",
        4,
        "--json",
        "-",
    )
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)["plan"]
    assert [stage["modules"] for stage in plan["stages"]][-1][-1] == "up"
    assert [name for stage in plan["stages"] for name in stage["modules"]] == ["down", "middle", "deep", "up"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nothing.json", "nothing.json"),
        ("absent.py:small", "there is no file"),
        ("model.py:large", "has no function 'large'"),
        ("model.py:nothing", "returns a int; expected a model or its modules"),
        ("broken.py:small", "cannot be run: ZeroDivisionError"),
        ("tasks.json", "cannot read modules from"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, files, source, said):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "tasks.json").write_text('{"other": 1}')
    done = call("plan", "pipeline", f"{tmp_path}/{source}", "--topology", files[1])
    assert done.exit_code == 2 and said in done.output
