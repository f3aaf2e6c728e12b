"""`wirewise plan parallel`: a user's model captured and planned, its JSON and picture, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from wirewise import trace
from wirewise.cli.main import app
from wirewise.plans import load

MODEL = """
import torch
from torch import nn
from wirewise_papers.parallel_models import mlp

def build(batch=16):
    return mlp(batch=batch, layers=1)

def fixed():
    return mlp(batch=16, layers=1)

def with_loss():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    return model, torch.randn(16, 8), lambda model, x: model(x).square().mean()

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        if x.sum() > 0:
            return self.layer(x)
        return x * 2

def gated():
    model = nn.Sequential(nn.Linear(8, 8), Gate(), nn.Linear(8, 8))
    return model, torch.ones(16, 8), lambda model, x: model(x).square().mean()

class Root(Gate):
    def forward(self, x):
        return super().forward(x).sum()

def refused():
    return Root(), (torch.ones(4, 8),)

def nothing():
    return 3

def llama(batch=4):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    tokens = torch.randint(64, (batch, 8))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}

def broken():
    raise ValueError("no such file")
"""


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def file(tmp_path):
    """File with functions that make models."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def planned(source, *words):
    return call("plan", "parallel", source, "--topology", "lab-4@200mbit", "--device", "a100", *words)


@pytest.mark.slow
def test_a_model_is_planned_drawn_and_planned_again_from_its_graph(file, tmp_path):
    out, page = tmp_path / "plan.json", tmp_path / "page.html"
    done = planned(
        f"{file}:build", "--batch", 32, "--stages", 1, "-o", out, "--json", tmp_path / "found.json"
    )
    assert done.exit_code == 0, done.output
    found, plan = json.loads((tmp_path / "found.json").read_text()), load(out)
    assert found["mesh"] == list(plan.mesh) and found["stages"] == 1 and found["microbatches"] == 1
    assert found["predicted_step_s"] == plan.predicted_step_s > 0
    assert 0 < found["evenly_shared_s"] <= found["predicted_step_s"] and "shared evenly" in done.stdout
    assert found["collective_bytes"] == plan.collective_bytes and len(found["memory_bytes"]) == 4
    assert found["planning_s"] > 0 and found["capture_s"] > 0 and found["gap"] >= 0 and "bound_s" in found
    assert {"block", "strategy"} == set(found["choices"][0])
    assert "a step takes" in done.stdout and "planned in" in done.stdout
    graph = trace.read_operator_graph(tmp_path / "plan.graph.json")
    assert graph.digest == plan.graph and graph.device == "a100"
    assert [node.shape for node in graph.nodes if node.op == "input"] == [(32, 32)] * 2
    shown = call("show", out, "--html", page, "--topology", "lab-4@200mbit")
    assert shown.exit_code == 0, shown.output
    text = page.read_text()
    assert "blocks.0.up" in text and "sent forward" in text and "A step takes" in text
    again = planned(tmp_path / "plan.graph.json", "--mesh", 4, "--json", "-")
    assert json.loads(again.stdout)["mesh"] == found["mesh"]


@pytest.mark.slow
def test_a_loss_of_ones_own_and_a_module_as_a_whole(file):
    done = planned(f"{file}:with_loss", "--mesh", 4, "--level", "O2")
    assert done.exit_code == 0, done.output
    done = planned(f"{file}:gated", "--mesh", 4, "--json", "-")
    assert done.exit_code == 0, done.output
    assert any("module 1 (Gate) is taken as a whole" in note for note in json.loads(done.stdout)["notes"])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("nothing", (), "returns a int; expected a model that returns its loss and its inputs"),
        ("broken", (), "cannot be called: ValueError: no such file"),
        ("missing", (), "has no function 'missing'"),
        ("fixed", ("--batch", 8), "fixed in .* takes no argument `batch`"),
        ("build", ("--mesh", "2by2"), "--mesh is '2by2'; expected ranks along each dimension"),
        ("build", ("--with", "magic"), "unknown parallel planner 'magic'"),
        ("refused", (), r"cannot be captured at .*if x\.sum\(\) > 0: .*torch\.where"),
        (
            "build",
            ("--memory", "20kB", "--mesh", 4),
            "no plan has room: rank . needs .* at least .* too little",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(file, name, words, said):
    done = planned(f"{file}:{name}", *words)
    assert done.exit_code != 0
    assert re.search(said, " ".join((done.output + str(done.exception or "")).split())), done.output


@pytest.mark.slow
def test_a_model_of_transformers_is_planned_as_it_is(file):
    result = call(
        "plan", "parallel", f"{file}:llama", "--topology", "lab-4@200mbit", "--device", "a100", "--mesh", "4"
    )
    assert result.exit_code == 0, result.output
    assert "1 stage of 4 model" in result.output
    assert "taken as a whole" not in result.output


def test_a_graph_has_its_batch_and_needs_times(tmp_path):
    from tests.trace.test_operator_graph import GOOD

    trace.write_operator_graph(GOOD, tmp_path / "graph.json")
    done = call("plan", "parallel", tmp_path / "graph.json", "--topology", "lab-2@1gbit", "--batch", 4)
    assert done.exit_code != 0 and "--batch belongs to a function" in done.output
    done = call("plan", "parallel", tmp_path / "graph.json", "--topology", "lab-2@1gbit")
    assert done.exit_code != 0 and "have no times" in done.output
