"""`wirewise plan fusion --trace`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.plans import load


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    tensors = [{"name": f"t{i}", "elements": 1000 * (i % 5 + 1) ** 5, "gap_us": 300} for i in range(30)]
    path.write_text(json.dumps({"model": "m", "tensors": tensors}))
    return path


WORDS = ("--ranks", 8, "--bandwidth", "10gbit", "--costs", "v100")


@pytest.mark.parametrize("method", ["cupcake", "layer-wise", "even:4", "bucket:4", "mg-wfbp", "mergecomp"])
def test_groups_are_told_to_scripts(trace, method):
    result = call(
        "plan", "fusion", "--trace", trace, "--with", method, "--codec", "dgc", *WORDS, "--json", "-"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["planner"] == method
    assert [group["first"] for group in found["groups"]] == [
        0,
        *(g["last"] + 1 for g in found["groups"][:-1]),
    ]
    assert found["groups"][-1]["last"] == 29
    assert {group["codec"] for group in found["groups"]} <= {"dgc", "none"}
    assert found["lower_bound_s"] <= found["predicted_step_s"] * (1 + 1e-12)
    assert found["gap"] == pytest.approx(found["predicted_step_s"] / found["lower_bound_s"] - 1, abs=1e-12)
    assert found["planning_s"] > 0
    if method == "layer-wise":
        assert len(found["groups"]) == 30 and found["predicted_step_s"] == found["layer_wise_step_s"]


def test_a_plan_is_written_and_told(trace, tmp_path):
    words = [
        "plan",
        "fusion",
        "--trace",
        trace,
        *WORDS,
        "--ranks-per-host",
        4,
        "--decode",
        "lazy,queue",
        "--seed",
        3,
    ]
    result = call(*words, "-o", tmp_path / "plan.json")
    assert result.exit_code == 0, result.output
    plan = load(tmp_path / "plan.json")
    assert (plan.planner, plan.world_size, plan.seed) == ("cupcake", 8, 3)
    assert result.stdout.startswith("A step of 8 ranks takes ") and "no plan takes less than" in result.stdout
    assert f"bucket 0: {plan.buckets[0].way}" in result.stdout
    call(*words, "-o", tmp_path / "again.json")
    assert (tmp_path / "plan.json").read_text() == (tmp_path / "again.json").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "dpro"], "unknown planner 'dpro'; expected cupcake"),
        (["--with", "even:0"], "even:0"),
        (["--codec", "zip"], "no times of codec 'zip' on V100"),
        (["--ranks", "1"], "expected at least 2"),
        (["--bandwidth", "fast"], "rate 'fast'"),
        (["--costs", "absent.json"], "absent.json"),
        (["--decode", "never"], "unknown place to decode 'never'"),
        (["--memory-budget", "1GiB"], "give one of them"),
    ],
)
def test_wrong_words_are_named(trace, words, message):
    result = call("plan", "fusion", "--trace", trace, *WORDS, *words)
    assert result.exit_code == 2 and message in result.output.replace("\n", " ")


def test_words_of_a_trace_need_one(tmp_path):
    result = call("plan", "fusion", tmp_path, "--codec", "dgc")
    assert result.exit_code == 2 and "--codec belongs to --trace" in result.output
    result = call("plan", "fusion")
    assert result.exit_code == 2 and "nothing to plan for" in result.output
