"""Checks of one GPU: they fit in their time, name files that exist, and are refused where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.one_gpu import ROOT, checks


def test_all_checks_fit_in_four_minutes_and_name_files_that_exist(tmp_path):
    found = checks(tmp_path)
    assert sum(check.limit_s for check in found) <= 240
    files = [
        Path(word) for check in found for word in check.command if word.startswith(("tests/", str(ROOT)))
    ]
    assert files and all((ROOT / file).exists() for file in files)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_is_told_so(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "one_gpu.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "finds no CUDA device" in done.stderr
    assert not (tmp_path / "out").exists()
