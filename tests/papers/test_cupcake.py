"""Plans of compressed gradients: what a job may ask for, and the whole way in a lab."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.cost.gradients import load_costs
from wirewise.plans import load
from wirewise.sim import predict
from wirewise.trace.gradients import GradientTensor, GradientTrace, read_gradient_trace
from wirewise_papers.cupcake import experiment as cupcake
from wirewise_papers.cupcake.job import (
    CupcakeJob,
)

TENSORS = tuple(
    GradientTensor(name=f"layer{i}.weight", elements=20_000 + i, gap_us=4_000.0) for i in range(6)
)
TRACE = GradientTrace(tensors=TENSORS, model="six")


def test_costs_are_kept_for_the_same_network_and_model_only(tmp_path):
    job, path = CupcakeJob(trace=TRACE, hosts=2), tmp_path / "costs.json"
    for other, kept in (
        (msgspec.structs.replace(job, plans=("even:2",)), True),
        (msgspec.structs.replace(job, link="1gbit"), False),
        (msgspec.structs.replace(job, hosts=3), False),
    ):
        (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
        path.write_text("{}")
        cupcake._keep_costs(other, tmp_path)
        assert path.exists() == kept
    (tmp_path / "job.json").unlink()
    path.write_text("{}")
    cupcake._keep_costs(job, tmp_path)
    assert not path.exists()


def call(*words: object):
    return CliRunner().invoke(app, ["run", "cupcake", *map(str, words)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "six.json"
    path.write_bytes(msgspec.json.encode(TRACE))
    return path


def test_bad_words_end_with_what_to_do(trace, tmp_path):
    for words, told in (
        (["--trace", tmp_path / "no.json"], "no.json"),
        (["--trace", trace, "--plans", "cupcake,best"], "unknown planner 'best'"),
        (["--trace", trace, "--codec", "zip"], "unknown codec 'zip'"),
        (["--trace", trace, "--scale", 0], "scale is 0"),
    ):
        done = call(*words)
        assert done.exit_code == 2 and told in done.output, done.output


@pytest.mark.lab
def test_the_whole_way(trace, tmp_path):
    out = tmp_path / "run"
    plans = "cupcake,efsign:layer-wise,none:bucket:25"
    words = ["--trace", trace, "--hosts", 2, "--link", "200mbit", "--plans", plans, "--codec", "efsign"]
    done = call(*words, "--steps", 3, "--rounds", 1, "--out", out, "--json", "-")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert json.loads((out / "result.json").read_text()) == result
    assert list(result["plans"]) == plans.split(",")
    assert "is taken after 2 windows" in done.stderr
    for plan in result["plans"].values():
        # Six gradients of 80 kB: neither less than what is slept nor a run that hung.
        assert 0.036 < plan["step_s"] < 10 and plan["lower_bound_s"] <= plan["predicted_step_s"] * (1 + 1e-9)
        assert plan["groups"][0]["first"] == 0 and plan["groups"][-1]["last"] == 5
        assert plan["error"] == pytest.approx(plan["predicted_step_s"] / plan["step_s"] - 1)
    plain, signs = result["plans"]["none:bucket:25"], result["plans"]["efsign:layer-wise"]
    assert plain["payload_bytes"] == 4 * sum(t.elements for t in TENSORS)
    assert plain["bytes_sent"] == pytest.approx(plain["payload_bytes"], rel=0.1)
    assert len(signs["groups"]) == 6 and signs["groups"][0]["measured_s"] is not None
    assert signs["payload_bytes"] < signs["bytes_sent"] < 0.2 * plain["bytes_sent"]
    assert "measuring codecs (efsign)" in done.stderr and "<svg" in (out / "report.html").read_text()
    assert set(json.loads((out / "costs.json").read_text())["delays"]) == {
        "all_reduce",
        "all_gather",
        "divisible",
    }
    job, costs = read_gradient_trace(out / "trace.json"), load_costs(out / "costs.json")
    for name, plan in result["plans"].items():
        share = result["forward_s"] / result["backward_s"]
        saved = load(out / f"plan-{name.replace(':', '-')}.json")
        found = predict(saved, job, costs=costs, forward_share=share)
        assert found.step_s == pytest.approx(plan["predicted_step_s"], rel=1e-9)
    again = call(*words[:-4], "--plans", "none:even:2", "--steps", 1, "--rounds", 1, "--out", out)
    assert again.exit_code == 0, again.output
    assert "measuring codecs" not in again.output
    assert "none:even:2 takes" in again.output
