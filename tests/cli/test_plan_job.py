"""Planners that are added to `PLANNERS` are offered by `wirewise plan`, whatever they are for."""

import json

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.cli.test_plan_operators import graph
from tests.trace.synthetic import make
from wirewise.cli.main import app
from wirewise.cli.plan_job import make_plan
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.plans import FusionPlan, load
from wirewise.topology import lab_hosts, save
from wirewise.trace import write_trace

__all__ = ["graph"]

TENSORS = [{"name": f"t{i}", "elements": 1000, "gap_us": 300} for i in range(4)]
TASKS = {
    "iterations": 2,
    "tasks": [
        {"name": "g", "kind": "store", "host": "host1"},
        {"name": "s", "kind": "sampler", "worker": "w", "execution_s": 0.01},
        {"name": "w", "kind": "worker", "execution_s": 0.1},
    ],
    "flows": [
        {"source": "g", "target": "s", "size_bytes": 1e6},
        {"source": "s", "target": "w", "size_bytes": 1e6},
    ],
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Jobs of every grain."""
    (tmp_path / "gradients.json").write_text(json.dumps({"tensors": TENSORS}))
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    write_trace(make(ranks=2, steps=4).seen, tmp_path / "run")
    save(lab_hosts(["400mbit"] * 2), tmp_path / "two.toml")
    monkeypatch.chdir(tmp_path)


def mine(family, like):
    """A planner that does as another one, and says that it is mine."""

    def plan(problem, links=None, *, seed=0, **knobs):
        return replace(PLANNERS[family][like](problem, links, seed=seed, **knobs), planner="mine")

    def without_knobs(problem, links=None, *, seed=0):
        return plan(problem, links, seed=seed)

    # What the commands of these families say of every plan.
    return plan if family in ("cache", "placement") else without_knobs


@pytest.mark.parametrize(
    ("family", "like", "words"),
    [
        ("fusion", "ddp", "run --with mine"),
        ("fusion", "layer-wise", "--trace gradients.json --bandwidth 1gbit --with mine"),
        ("fusion", "none+default", "--graph graph.json --bandwidth 1gbit --seed 3 --with mine"),
        ("collective", "greedy", "--topology two.toml --bytes 1MB --with mine"),
        (
            "cache",
            "halo",
            "--dataset block:nodes=300,classes=4,features=8 --workers 2 --fanouts 3 --policy mine",
        ),
        ("placement", "colocated", "--topology two.toml --job tasks.json --with mine"),
    ],
)
def test_a_planner_that_is_added_is_offered(family, like, words, files, graph, monkeypatch):
    monkeypatch.setitem(PLANNERS[family], "mine", mine(family, like))
    words = words.replace("graph.json", str(graph)).split()
    done = CliRunner().invoke(app, ["plan", family, *words, "-o", "plan.json"])
    assert done.exit_code == 0, done.output
    assert load("plan.json").planner == "mine"


def test_what_a_planner_cannot_use_or_make_is_named(monkeypatch):
    monkeypatch.setitem(PLANNERS["fusion"], "mine", lambda job, links=None, *, width=1: job)
    with pytest.raises(InputError, match="planner 'mine' has no use for depth, seed; it takes: width"):
        make_plan(FusionPlan, "mine", None, seed=1, depth=2, width=None)
    with pytest.raises(PlanError, match="planner 'mine' made a str; expected a FusionPlan"):
        make_plan(FusionPlan, "mine", "job", width=2, seed=None)


def test_bit_widths_are_planned_in_training():
    done = CliRunner().invoke(app, ["plan", "bitwidth", "run"])
    assert done.exit_code == 2 and "see wirewise run adaqp" in done.output
    assert "bitwidth" not in CliRunner().invoke(app, ["plan", "--help"]).stdout
