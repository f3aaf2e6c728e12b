"""A script with transformers' Trainer: recorded it trains as it does unrecorded, and its run is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wirewise.trace import read

SCRIPT = Path(__file__).parents[2] / "examples" / "trainer_text" / "train.py"


def run(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.dist
@pytest.mark.slow
def test_recording_changes_no_bit_of_a_trainer(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    script = [*torchrun, SCRIPT, "--steps", 10, "--out"]
    wirewise = [sys.executable, "-m", "wirewise"]
    run(*script, tmp_path / "plain")
    trace = ["profile", "trace", "--warmup", 2, "--steps", 4, "-o", tmp_path / "run", "--"]
    run(*wirewise, *trace, *script, tmp_path / "traced")
    plain, traced = (tmp_path / name / "model.safetensors" for name in ("plain", "traced"))
    assert plain.read_bytes() == traced.read_bytes()
    assert read(tmp_path / "run").world_size == 2
    shown = run(*wirewise, "trace", "show", tmp_path / "run")
    assert "bounds the step" in shown and "all_reduce\tcommunication" in shown
