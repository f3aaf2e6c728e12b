"""`wirewise slurm`: nothing is submitted unless asked; programs become ranks."""

from __future__ import annotations

import os
import sys

import pytest
from typer.testing import CliRunner

from tests.harness.slurm import ROOT
from tests.lab.helpers import soon
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


def state(cluster, number):
    return cluster.run("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T").strip()


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
    file = str(tmp_path / "job.sh")
    number = slurm_cluster.run("sbatch", "--parsable", file, environment=variables, cwd=tmp_path).strip()
    # `sbatch --wait` asks at longer and longer intervals.
    assert soon(lambda: state(slurm_cluster, number) not in ("PENDING", "RUNNING", "COMPLETING"), 120.0)
    assert state(slurm_cluster, number) == "COMPLETED"
    [log] = tmp_path.glob("printed-*.log")
    assert soon(lambda: sorted(log.read_text().splitlines()) == ["0 2 h0", "1 2 h0"]), log.read_text()
