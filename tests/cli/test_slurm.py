"""`wirewise slurm`: nothing is submitted unless asked; programs become ranks."""

from __future__ import annotations

import os
import sys
import time

import pytest
from typer.testing import CliRunner

from tests.harness.slurm import ROOT
from wirewise.cli.main import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["slurm", *arguments])


def test_a_script_is_printed_or_written(tmp_path):
    shown = invoke("script", "--hosts", "3", "--", "wirewise", "run", "adaqp")
    assert shown.exit_code == 0 and "#SBATCH --nodes=3\n" in shown.stdout
    written = invoke(
        "script", "--hosts", "3", "-o", str(tmp_path / "job.sh"), "--", "wirewise", "run", "adaqp"
    )
    assert written.stdout == "" and (tmp_path / "job.sh").read_text() == shown.stdout
    refused = invoke("script", "--submit", "--", "python", "x.py")
    assert refused.exit_code == 2 and "--submit needs --out FILE" in refused.output
    refused = invoke("script", "--", "run", "adaqp")
    assert (
        refused.exit_code == 2 and "'run' is no program; expected `-- wirewise run adaqp`" in refused.output
    )


def test_programs_that_cannot_be_ranks_are_refused(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("RANK", raising=False)
    refused = invoke("rank", "--", "python", "train.py")
    assert (
        refused.exit_code == 2
        and "start it as `srun wirewise slurm rank -- python train.py`" in refused.output
    )
    monkeypatch.setenv("RANK", "0")
    refused = invoke("rank", "--", "no-such-program")
    assert refused.exit_code == 2 and "cannot start 'no-such-program': No such file" in refused.output


@pytest.mark.slurm
@pytest.mark.slow
def test_e2_a_printed_script_runs_a_program_as_ranks(slurm_cluster, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR')), flush=True)\n"
    )
    wirewise = tmp_path / "wirewise"
    wirewise.write_text(f'#!/bin/sh\nexec {sys.executable} -m wirewise "$@"\n')
    wirewise.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    script = ["--hosts", "2", "-o", str(tmp_path / "job.sh"), "--name", "printed"]
    assert invoke("script", *script, "--", sys.executable, str(program)).exit_code == 0
    slurm_cluster.run("sbatch", "--wait", str(tmp_path / "job.sh"), environment=variables, cwd=tmp_path)
    [log] = tmp_path.glob("printed-*.log")
    until_s = time.monotonic() + 10
    while len(log.read_text().splitlines()) < 2 and time.monotonic() < until_s:
        time.sleep(0.1)
    assert sorted(log.read_text().splitlines()) == ["0 2 h0", "1 2 h0"]
