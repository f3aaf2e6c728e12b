"""`wirewise plan fusion --trace`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.planners.fusion import cupcake
from wirewise.plans import load
from wirewise.topology import from_pairs, save
from wirewise.topology import load as load_topology
from wirewise.trace import read_gradient_trace


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


def test_a_lossy_plan_says_what_its_codec_keeps_and_what_it_is_compared_with(trace, tmp_path):
    plan = tmp_path / "plan.json"
    result = call("plan", "fusion", "--trace", trace, *WORDS, "--codec", "randomk", "-o", plan)
    assert result.exit_code == 0, result.output
    kept = "randomk sends random values, 1 % of them by default"
    assert (
        "with each gradient on its own under randomk" in result.stdout and f"Lossy: {kept}" in result.stdout
    )
    assert f"lossy: {kept}; it is right" in call("check", plan).stdout
    shown = call("show", plan).stdout
    assert "each gradient alone, randomk\t" in shown and "without plan" not in shown


def test_a_plan_without_codecs_says_that_it_is_compared_with_compressed_gradients(tmp_path):
    """Codecs do not pay for small tensors, each of which alone, compressed, takes longer still."""
    tensors = [{"name": f"t{i}", "elements": 1000 * (i % 5 + 1) ** 3, "gap_us": 300} for i in range(8)]
    (tmp_path / "small.json").write_text(json.dumps({"model": "m", "tensors": tensors}))
    words = ("plan", "fusion", "--trace", tmp_path / "small.json", "--ranks", 2, "--bandwidth", "10gbit")
    dgc, plain = (call(*words, "--codec", codec).stdout for codec in ("dgc", "none"))
    assert "Lossy" not in dgc and "with each gradient on its own under dgc;" in dgc
    assert "with each gradient on its own;" in plain


@pytest.mark.slow
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


def test_pieces_are_told_to_scripts(trace):
    words = ["plan", "fusion", "--trace", trace, "--codec", "dgc", *WORDS, "--json", "-"]
    whole, split, best = (
        json.loads(call(*words, "--split", split).stdout) for split in ("none", "4MiB", "auto")
    )
    # Every fifth tensor has 3.1 million elements, which make three pieces of at most a million or so.
    assert split["splits"] == {f"t{i}": 1_044_480 for i in range(4, 30, 5)}
    assert whole["splits"] == {} and whole["unsplit_step_s"] == 0.0
    assert split["unsplit_step_s"] == whole["predicted_step_s"] >= split["predicted_step_s"]
    assert whole["layer_wise_step_s"] == split["layer_wise_step_s"]
    ends = [(group["last"], group["last_piece"]) for group in split["groups"]]
    begins = [(group["first"], group["first_piece"]) for group in split["groups"]]
    assert begins[0] == (0, 0) and ends[-1] == (29, 2)
    for (last, piece), begin in zip(ends[:-1], begins[1:], strict=True):
        assert begin in ((last + 1, 0), (last, piece + 1))
    assert best["unsplit_step_s"] == whole["predicted_step_s"]
    assert bool(best["splits"]) == (best["predicted_step_s"] <= 0.98 * whole["predicted_step_s"])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--with", "dpro"],
            "planner 'dpro' is for a recorded run; got gradients of a model; expected one of: cupcake, ",
        ),
        (["--with", "best"], "unknown fusion planner 'best'; expected one of: dpro"),
        (["--with", "cupcake:4"], "planner 'cupcake' has no use for number; it takes: seed"),
        (["--with", "even"], "even:NUMBER"),
        (["--with", "even:0"], "even:0"),
        (["--codec", "zip"], "no times of codec 'zip' on V100"),
        (["--ranks", "1"], "expected at least 2"),
        (["--bandwidth", "fast"], "rate 'fast'"),
        (["--costs", "absent.json"], "absent.json"),
        (["--decode", "never"], "unknown place to decode 'never'"),
        (["--memory", "1GiB"], "give one of them"),
        (["--time-budget", "5"], "no planner for --trace takes --time-budget"),
        (["--split", "big"], "'big' says no limit for pieces"),
        (["--split", "2B"], "expected auto, none or at least 1"),
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


@pytest.fixture
def hosts(tmp_path):
    """What `topo probe` writes, of four ranks."""
    rate, wait = np.full((4, 4), 1e9), np.full((4, 4), 5e-5)
    alone = [1e9, 1.2e9, 1e9, 0.4e9]
    save(
        from_pairs("four", "abcd", rate=rate, latency_s=wait, leaving=alone, arriving=alone),
        tmp_path / "hosts.toml",
    )
    return tmp_path / "hosts.toml"


def test_a_topology_takes_the_place_of_a_bandwidth(trace, hosts):
    words = ("plan", "fusion", "--trace", trace, "--codec", "dgc", "--split", "none", "--json", "-")
    found = json.loads(call(*words, "--topology", hosts).stdout)
    wanted = cupcake(read_gradient_trace(trace), Links.of(load_topology(hosts)), codec="dgc")
    assert found["predicted_step_s"] == wanted.predicted_step_s
    out = trace.with_name("plan.json")
    call(*words, "--topology", hosts, "-o", out)
    simulated = json.loads(call("sim", trace, "--plan", out, "--topology", hosts, "--json", "-").stdout)
    assert simulated["step_s"] == pytest.approx(wanted.predicted_step_s, rel=1e-9)
    assert found == {
        **json.loads(call(*words, "--topology", hosts, "--ranks", 4).stdout),
        "planning_s": found["planning_s"],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bandwidth", "10gbit"], "--bandwidth says what --topology"),
        (["--ranks-per-host", "2"], "--ranks-per-host says what --topology"),
        (["--ranks", "8"], "has 4 ranks; leave --ranks out"),
    ],
)
def test_what_contradicts_a_topology_is_refused(trace, hosts, words, message):
    result = call("plan", "fusion", "--trace", trace, "--topology", hosts, *words)
    assert result.exit_code == 2 and message in result.output.replace("\n", " ")
