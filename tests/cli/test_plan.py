"""`wirewise plan fusion` on a run folder."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.trace.synthetic import make
from wirewise.cli.main import app
from wirewise.plans import FusionPlan, load
from wirewise.trace import write_trace


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    write_trace(make(ranks=4, steps=8, sizes=(400_000, 20_000_000, 8_000_000), clock_s=2.0).seen, path)
    return path


def test_a_plan_is_written_and_explained(folder, tmp_path):
    result = call("plan", "fusion", folder, "-o", tmp_path / "plan.json", "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    first, titles, *_ = result.stdout.splitlines()
    assert first.startswith("A step of 4 ranks takes ") and "under the plan" in first
    assert titles.split("\t")[0] == "decision"
    assert "wirewise.runtime.data_parallel.parallel(" in result.stdout
    plan, found = load(tmp_path / "plan.json"), json.loads((tmp_path / "found.json").read_text())
    assert isinstance(plan, FusionPlan) and plan.world_size == 4
    assert plan.planner == found["plan"]["planner"] == "dpro"
    assert (
        found["planned_step_s"] == plan.predicted_step_s <= plan.baseline_step_s == found["replayed_step_s"]
    )
    # The trace is of 250e6 bytes/s, one bucket at a time.
    assert found["replayed_step_s"] == pytest.approx(found["measured_step_s"], rel=0.1)
    assert plan.size_bytes == pytest.approx(28_400_000, abs=3)


@pytest.mark.parametrize("planner", ["ddp", "rules", "exhaustive", "mcmc"])
def test_other_planners_are_known_by_name(folder, planner):
    found = json.loads(call("plan", "fusion", folder, "--with", planner, "--json", "-").stdout)
    assert found["plan"]["planner"] == planner


def test_a_memory_budget_is_kept(folder, tmp_path):
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps({"layer0": {"saved_bytes": 1e8, "input_bytes": 1e6}}))
    words = ["plan", "fusion", folder, "--memory-sizes", sizes, "--json", "-"]
    free = json.loads(call(*words).stdout)["plan"]
    tight = json.loads(call(*words, "--memory-budget", "180MB").stdout)["plan"]
    # Weights, gradients and two moments of 28.4 MB, and what the layer keeps.
    assert free["predicted_memory_bytes"] == pytest.approx(213.6e6, rel=1e-3)
    assert tight["predicted_memory_bytes"] <= 180e6 and tight["accumulation"] == 2
    result = call(*words, "--memory", "100MB")
    assert result.exit_code == 2 and "least possible peak" in result.output


def test_sizes_that_do_not_fit_are_named(folder, tmp_path):
    sizes = tmp_path / "sizes.json"
    for text, message in (
        ('{"x": {"saved_bytes": 1}}', "no module of the run"),
        ('{"x": 1}', "expected JSON"),
    ):
        sizes.write_text(text)
        result = call("plan", "fusion", folder, "--memory-sizes", sizes)
        assert result.exit_code == 2 and message in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "best"], "unknown fusion planner 'best'"),
        (["--with", "ddp", "--time-budget", "5"], "planner 'ddp' has no search that time could end"),
        (
            ["--with", "disco"],
            "planner 'disco' is for operators of a captured step; got a recorded run; expected one of: dpro, ",
        ),
        (["--memory", "8GiB"], "needs --memory-sizes"),
        (["--time-budget", "0"], "time budget is 0"),
    ],
)
def test_wrong_words_are_named(folder, words, message):
    result = call("plan", "fusion", folder, *words)
    assert result.exit_code == 2
    assert message in result.output


def test_a_missing_run_is_named(tmp_path):
    result = call("plan", "fusion", tmp_path / "absent")
    assert result.exit_code == 2 and "absent" in result.output
