"""Examples of one feature each, as their first lines start them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wirewise import lab
from wirewise.cli.main import app
from wirewise.sim.traces import replay_trace
from wirewise.trace.sources import on_one_clock, open_trace

FOLDER = Path(__file__).parents[2] / "examples" / "by_feature"
RANKS = {"collectives": 4, "redistribute": 4}
SAID = {
    "full_graph": r"test accuracy (0\.[89]\d|1\.00)",
    "neighbor_loader": r"test accuracy (0\.[89]\d|1\.00) of 300 nodes",
    "mini_batches": r"rank 0, epoch 1: loss \d",
    "pipeline": r"update 9: loss \d",
    "parallel_plan": r"step 4: loss 0\.\d+|1\.\d+",
    "redistribute": r"rank 0: \[4096, 128\], equal True",
    "compressed_ddp": r"loss \d\.\d+; sent \d+ bytes for \d+ bytes of gradients",
    "own_buckets": r"'(layer by layer|all in one)' is kept",
    "collectives": r"sum 6, expected 6",
    "backend": r"rank 0: replicas equal True",
    "trace_and_ask": r"",
    "unequal_hosts": r"loss \d\.\d+",
    "accelerate_hook": r"loss \d\.\d+",
}
"""Pattern that an example prints on one of its ranks."""


@pytest.mark.dist
@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lab.Loopback() as network:
        result = network.run(
            [str(FOLDER / f"{name}.py")],
            processes_per_host=RANKS.get(name, 2),
            launcher="direct",
            timeout_s=100,
        )
    assert result.ok, result.tails
    assert re.search(SAID[name], "\n".join("\n".join(tail) for tail in result.tails)), result.tails


@pytest.mark.dist
@pytest.mark.parametrize("name", ["full_graph", "pipeline"])
def test_an_example_is_recorded_and_replayed(name, tmp_path):
    """Models that check their own hooks and messages that other threads receive, as the README's first command does."""
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", FOLDER / f"{name}.py"]
    words = ["profile", "trace", "-o", tmp_path / "run", "--warmup", 2, "--steps", 6, "--", *ranks]
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    trace = open_trace([tmp_path / "run"])
    assert len(trace.steps()) >= 4
    waits = {(op.kind, op.name) for rank in trace.ranks for op in rank.ops if op.thread == "main"}
    assert ("wait", "recv") in waits
    report = replay_trace(on_one_clock(trace))
    assert [step.step for step in report.per_step] == trace.steps()


def test_a_plan_is_predicted_on_any_links():
    done = subprocess.run(
        [sys.executable, FOLDER / "predict_any_plan.py"], capture_output=True, text=True, check=True
    )
    rates = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert rates == ["100mbit", "1gbit", "10gbit"]


@pytest.mark.dist
@pytest.mark.slow
def test_a_training_survives_a_kill(tmp_path):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    script = str(FOLDER / "survive_failures.py")
    words = [
        "run",
        "swift",
        "--kills",
        "1",
        "--out",
        str(tmp_path / "run"),
        "--",
        torchrun,
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "wirewise", *words, script], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_is_short_tested_and_listed():
    scripts = sorted(FOLDER.glob("*.py"))
    assert {one.stem for one in scripts} == {*SAID, "predict_any_plan", "survive_failures"}
    page = (FOLDER / "README.md").read_text()
    for script in scripts:
        assert len(script.read_text().splitlines()) <= 60, script
        assert f"`{script.name}`" in page
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (FOLDER / target).is_file(), target
