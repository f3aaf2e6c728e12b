"""The commands that measure stalls and recommend machines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tests.papers.test_stalls import SCRIPT, report
from wirewise.cli.main import app
from wirewise.cost.stalls import COMPONENTS


@pytest.mark.slow
@pytest.mark.dist
def test_one_rank_by_the_command(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    out = tmp_path / "stalls.json"
    words = ["profile", "stalls", "--steps", "5", "--warmup", "1", "--repeats", "1", "--json", str(out)]
    words += ["--what-if", "cached=50%", "--compat", "--", sys.executable, str(script), "0"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("The largest stall is ")
    assert "the end of the script was reached" not in result.output
    record = json.loads(out.read_text())
    for name in (*COMPONENTS, "total"):
        low, high = record[f"{name}_s"]["ci95_s"]
        assert low <= record[f"{name}_s"]["mean_s"] <= high
    assert record["interconnect_s"]["mean_s"] == record["network_s"]["mean_s"] == 0.0
    parts = [record[f"{name}_s"]["mean_s"] for name in COMPONENTS]
    assert sum(parts) == pytest.approx(record["total_s"]["mean_s"])
    (guess,) = record["what_if"]
    assert guess["cached"] == 0.5 and guess["step_s"] > 0 and guess["published_step_s"] > 0
    assert record["compat"]["as_coded"]["fetch_stall_s"] > record["compat"]["as_published"]["fetch_stall_s"]


def test_a_recommendation_is_printed_and_written(tmp_path):
    (tmp_path / "stalls.json").write_bytes(msgspec.json.encode(report()))
    prices = str(Path(__file__).parents[2] / "examples" / "prices.toml")
    words = ["profile", "recommend", prices, "--from", str(tmp_path / "stalls.json"), "--samples", "1000"]
    result = CliRunner().invoke(app, [*words, "--budget", "3h", "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "by prices of 2026-11-01" in result.stdout.splitlines()[0]
    choices = json.loads((tmp_path / "out.json").read_text())["choices"]
    kept = [c["cost"] for c in choices if c["within_budget"]]
    assert kept == sorted(kept) and 0 < len(kept) < len(choices)
    assert CliRunner().invoke(app, [*words, "--budget", "soon"]).exit_code == 2


@pytest.mark.parametrize("text", ["cached=2", "cached", "prep=0.5", "cached=101%"])
def test_a_what_if_that_is_not_understood_is_named(text):
    result = CliRunner().invoke(app, ["profile", "stalls", "--what-if", text, "--", sys.executable, "x.py"])
    assert result.exit_code == 2 and "what-if" in result.stderr
