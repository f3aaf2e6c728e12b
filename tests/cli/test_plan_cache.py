"""`wirewise plan cache`."""

import json

import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.planners.cache import POLICIES
from wirewise.plans import CachePlan, load

GRAPH = "block:nodes=2000,classes=4,features=8"


def call(*words):
    return CliRunner().invoke(app, ["plan", "cache", "--dataset", GRAPH, *map(str, words)])


def test_policies_side_by_side_and_a_plan(tmp_path):
    words = ["--workers", 3, "--fanouts", "6,3", "--batch-size", 8, "--alpha", "0.1,0.5", "--policy", "all"]
    result = call(*words, "-o", tmp_path / "plan.json", "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("A batch of 8 seeds on each of 3 machines needs ")
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["policies"]) == set(POLICIES)
    for name, by_alpha in found["policies"].items():
        assert 0 <= by_alpha["0.5"] < by_alpha["0.1"] < 1, name
    plan = load(tmp_path / "plan.json")
    assert isinstance(plan, CachePlan)
    assert (plan.world_size, plan.planner, plan.fanouts) == (3, "vip", (6, 3))
    assert plan.remote_fraction == found["policies"]["vip"]["0.1"]


def test_the_busiest_link_and_its_bound(tmp_path):
    words = [
        "--workers",
        3,
        "--fanouts",
        "6,3",
        "--batch-size",
        8,
        "--alpha",
        "0.5",
        "--policy",
        "vip,bayesian",
    ]
    found = {}
    for share in ("equal", "balanced"):
        result = call(*words, "--share", share, "--json", tmp_path / share, "-o", tmp_path / "plan.json")
        assert result.exit_code == 0, result.output
        found[share] = json.loads((tmp_path / share).read_text())
        rows = load(tmp_path / "plan.json").fetched
        received, sent = rows.sum(axis=1).max(), rows.sum(axis=0).max()
        assert found[share]["busiest_rows"]["vip"]["0.5"] == pytest.approx(max(received, sent))
        assert f"fetches at most {received:.0f} rows a batch and sends at most {sent:.0f};" in result.stdout
    assert found["equal"]["lower_bound_rows"] == found["balanced"]["lower_bound_rows"]
    for policy in ("vip", "bayesian"):
        bound = found["equal"]["lower_bound_rows"][policy]["0.5"]
        equal, balanced = (found[share]["busiest_rows"][policy]["0.5"] for share in ("equal", "balanced"))
        assert 0 < bound <= balanced < equal


def test_json_alone():
    found = json.loads(call("--workers", 2, "--fanouts", "4", "--json", "-").stdout)
    assert list(found["policies"]) == ["vip"]
    assert found["row_bytes"] == 32


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fanouts", "5,0"], "--fanouts is 5,0; expected at least 1 neighbour in each hop"),
        (["--policy", "best"], "unknown cache planner 'best'"),
        (["--share", "fair"], "--share is 'fair'; expected one of: equal, balanced"),
        (["--alpha", "some"], "--alpha is 'some'; expected numbers by comma"),
        (["--alpha", "-1"], "--alpha is"),
        (["--fanouts", "5,-2"], "each of at least 0, or -1"),
        (["--train-share", "0"], "--train-share is 0.0"),
        (["--semantics", "both"], "cumulative, frontier"),
        (["--workers", "3000"], "3000 parts"),
    ],
)
def test_options_that_cannot_be_used(words, told):
    result = call(*words)
    assert result.exit_code != 0
    assert told in (result.output if not result.exception else f"{result.output} {result.exception}")
