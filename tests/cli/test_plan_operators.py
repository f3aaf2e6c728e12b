"""`wirewise plan fusion --graph`."""

from __future__ import annotations

import json

import msgspec
import pytest
from benchmarks.random_steps import DEVICE, random_step
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.planners.fusion.disco import METHODS, AnalyticCosts
from wirewise.plans import load
from wirewise.trace import read_fusion_graph


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A step whose operators were measured."""
    path = tmp_path_factory.mktemp("graph") / "graph.json"
    found = random_step(1, 2)
    costs = AnalyticCosts(found, DEVICE)
    timed = [msgspec.structs.replace(o, time_s=costs((i,), (i,))) for i, o in enumerate(found.operators)]
    msgspec.structs.replace(found, operators=tuple(timed)).save(path)
    return path


WORDS = ("--ranks", 4, "--bandwidth", "1gbit")


@pytest.mark.parametrize("method", ["disco", "none+default", "maximal+1MiB"])
def test_a_plan_is_told_to_scripts(graph, method):
    result = call("plan", "fusion", "--graph", graph, "--with", method, *WORDS, "--json", "-")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["planner"] == found["plan"]["planner"] == method
    assert found["plan"]["world_size"] == 4 and found["plan"]["regions"] and found["plan"]["buckets"]
    assert max(found["full_overlap_s"], found["lower_bound_s"]) <= found["predicted_step_s"] * (1 + 1e-12)
    best = min(found["baselines_s"].values())
    if method == "disco":
        assert found["predicted_step_s"] <= best
    else:
        assert found["predicted_step_s"] == found["baselines_s"][method]
    assert found["planning_s"] > 0 and found["evaluations"] >= 9


def test_a_plan_is_written_and_told(graph, tmp_path):
    words = ("plan", "fusion", "--graph", graph, *WORDS, "--seed", 3)
    result = call(*words, "-o", tmp_path / "plan.json")
    assert result.exit_code == 0, result.output
    plan = load(tmp_path / "plan.json")
    assert (plan.planner, plan.seed) == ("disco", 3)
    assert result.stdout.startswith("A step of 4 ranks takes ") and "The search simulated" in result.stdout
    assert "bucket 0" in result.stdout


def test_a_plan_says_what_of_it_rests_on_estimated_times(graph):
    words = ("plan", "fusion", "--graph", graph, *WORDS)
    found = {}
    for method in ("maximal+default", "none+default"):
        found[method] = json.loads(call(*words, "--with", method, "--json", "-").stdout)
    without_s = found["none+default"]["predicted_step_s"]
    # Nothing is fused, so all rests on measured operators.
    assert found["none+default"]["unfused_s"] == pytest.approx(without_s)
    assert "estimated" not in call(*words, "--with", "none+default").stdout
    fused = found["maximal+default"]
    said = call(*words, "--with", "maximal+default").stdout
    saves, slower = fused["predicted_step_s"] < without_s, fused["predicted_step_s"] > 1.01 * without_s
    assert ("`wirewise run disco` measures it" in said) == (
        saves and fused["unfused_s"] > fused["predicted_step_s"]
    )
    assert ("slower than without fusion" in said) == slower and (saves or slower)
    # Estimated times alone advise no plan: they may only advise against one.
    assert (fused["advice"] == "leave it to DDP") == slower == ("leave it to DDP" in said)
    assert slower or fused["advice"] == "measure it by wirewise run disco"


def test_a_plan_that_is_slower_than_none_says_so(graph):
    """Each gradient by itself, where messages have a price: latency is paid for each."""
    words = ("plan", "fusion", "--graph", graph, "--ranks", 64, "--bandwidth", "100gbit")
    by_method = {
        method: json.loads(call(*words, "--with", method, "--json", "-").stdout)["predicted_step_s"]
        for method in METHODS[1:]
    }
    slowest = max(by_method, key=lambda method: by_method[method])
    assert by_method[slowest] > 1.01 * by_method["none+default"]
    assert "slower than without fusion and with default buckets" in call(*words, "--with", slowest).stdout


def test_a_learned_estimator_prices_regions(graph, tmp_path):
    of_a_cpu = tmp_path / "cpu.json"
    msgspec.structs.replace(read_fusion_graph(graph), device="cpu").save(of_a_cpu)
    words = ("plan", "fusion", "--graph", of_a_cpu, *WORDS, "--with", "maximal+default")
    learned, plain = call(*words, "--estimator", "shipped"), call(*words)
    assert learned.exit_code == 0, learned.output
    assert "an estimator learned from" in learned.stdout and "a formula says" in plain.stdout
    assert plain.stdout.splitlines()[0] != learned.stdout.splitlines()[0]
    elsewhere = call("plan", "fusion", "--graph", graph, *WORDS, "--estimator", "shipped")
    assert "there are no weights of the estimator for device" in elsewhere.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--estimator", "absent.npz"], "absent.npz"),
        (
            ["--with", "dpro"],
            "planner 'dpro' is for a recorded run; got operators of a captured step; expected one of: disco",
        ),
        (["--codec", "dgc"], "--codec does not go with --graph"),
        (["--ranks", "1"], "expected at least 2"),
        (["--trace", "t.json"], "give one of them"),
        (["--memory", "1GiB"], "give one of them"),
        (["--time-budget", "5"], "no planner for --graph takes --time-budget"),
    ],
)
def test_wrong_words_are_named(graph, words, message):
    result = call("plan", "fusion", "--graph", graph, *WORDS, *words)
    assert result.exit_code == 2 and message in result.output.replace("\n", " ")


def test_files_that_cannot_be_used_are_named(graph, tmp_path):
    result = call("plan", "fusion", "--graph", tmp_path / "absent.json", *WORDS)
    assert result.exit_code == 2 and "absent.json" in result.output.replace("\n", "")
    random_step(1, 2).save(tmp_path / "bare.json")
    result = call("plan", "fusion", "--graph", tmp_path / "bare.json", *WORDS)
    assert result.exit_code == 2 and "measured time_s" in result.output.replace("\n", " ")
