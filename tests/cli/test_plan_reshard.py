"""`wirewise plan reshard`."""

import json

import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.plans import ReshardPlan, load


def call(*words, target="2x2:S0,R,R"):
    common = ["--from", "2x2:R,S0,R", "--to", target, "--shape", "64,64,32"]
    return CliRunner().invoke(app, ["plan", "reshard", *common, *map(str, words)])


def test_a_tensor_is_planned_for_a_topology(tmp_path):
    file = tmp_path / "plan.json"
    result = call("--topology", "lab-4x2@200mbit", "-o", file)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ring in 2 rounds takes ")
    assert "must leave host 0, 1 at" in result.stdout or "must enter host" in result.stdout
    plan = load(file)
    assert isinstance(plan, ReshardPlan)
    told = CliRunner().invoke(app, ["sim", "--plan", str(file), "--topology", "lab-4x2@200mbit"])
    assert f"takes {plan.predicted_s * 1e3:.3f} ms" in told.stdout
    assert (
        "it is right and fits"
        in CliRunner().invoke(app, ["check", str(file), "--topology", "lab-4x2"]).stdout
    )


def test_figures_for_scripts():
    asked = ["--topology", "lab-4x2@200mbit", "--strategy", "p2p", "--dtype", "bfloat16", "--json", "-"]
    told = json.loads(call(*asked, "--chunk", "128KiB", "--order", "naive").stdout)
    assert told["strategy"] == "p2p" and told["plan"]["chunk_bytes"] == 131072
    size = 64 * 64 * 32 * 2
    assert told["bytes_sent"] == 2 * size and told["bytes_between_hosts"] == 2 * size
    assert told["predicted_s"] >= told["bound_s"] == pytest.approx(size / 2 / 25e6)
    assert told["rounds"] == 3 and told["planning_s"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topology", "lab-4"], "tensor 'tensor' is on rank 4, there are 4 ranks"),
        (["--topology", "lab-4x2", "--strategy", "fast"], "unknown strategy 'fast'"),
        (["--topology", "lab-4x2", "--dtype", "float31"], "--dtype is 'float31'"),
        (["--topology", "lab-4x2", "--chunk", "0"], "size '0'"),
    ],
)
def test_what_is_refused(words, said):
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_layouts_that_do_not_fit_the_shape():
    result = call("--topology", "lab-4x2", target="2x2:S0,R")
    assert result.exit_code == 2
    assert "target.dims: got 2 placements; expected one for each of 3 dimensions" in result.output
