"""`wirewise profile operators`, on regions that were measured before."""

from __future__ import annotations

import json

import msgspec
from typer.testing import CliRunner

from tests.benchmarks.test_fused_operators import samples
from wirewise.cli.main import app
from wirewise.planners.fusion.disco import Estimator


def test_weights_are_fitted_and_tried_on_unseen_structures(tmp_path):
    file, out = tmp_path / "samples.jsonl", tmp_path / "weights.npz"
    file.write_bytes(b"\n".join(msgspec.json.encode(samples(seed)) for seed in range(16)) + b"\n")
    words = (
        "profile",
        "operators",
        "-o",
        out,
        "--samples",
        file,
        "--structures",
        16,
        "--epochs",
        2,
        "--json",
        "-",
    )
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["samples"] + Estimator.load(out).about.regions == 48
    assert 0 <= found["within_20"] <= 1 and found["machine"] == Estimator.load(out).about.machine


def test_too_few_structures_are_refused(tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_bytes(b"\n".join([msgspec.json.encode(samples(0))] * 8) + b"\n")
    words = ("profile", "operators", "-o", tmp_path / "w.npz", "--samples", file, "--structures", 8)
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2 and "too few structures" in result.output
