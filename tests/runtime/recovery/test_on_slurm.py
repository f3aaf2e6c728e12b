"""A protected training on hosts of an allocation that outlives one of them."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from tests.harness.slurm import ROOT
from tests.runtime.recovery.trained import alone, outcomes
from wirewise.lab import SlurmCluster

HOST = """
import json, os, sys
from pathlib import Path
from tests.runtime.recovery.trained import train
from wirewise.runtime.recovery import Agent

if __name__ == "__main__":
    folder, faults, host = sys.argv[1], sys.argv[2], int(os.environ["SLURM_NODEID"])
    Agent(
        train, (folder, {"steps": 20, "sleep_s": 0.05}), ranks=2, host=host, hosts=2, spares=1, address="h0",
        port=29700, folder=Path(folder) / str(host), environment={"WIREWISE_FAULTS": faults}, lease_s=3.0,
    ).run()
"""


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_e5_a_training_outlives_a_host_of_its_allocation(tmp_path, warm_python):
    script, claim = tmp_path / "host.py", tmp_path / "claim-0"
    script.write_text(HOST)
    fault = {"act": "stop", "rank": 1, "point": "bucket", "step": 8, "claim": str(claim)}
    command = ["salloc", "--no-kill", "--nodes=2", "--ntasks=2", "srun", "--no-kill", "--kill-on-bad-exit=0"]
    command += [str(warm_python), str(script), str(tmp_path), json.dumps([fault])]
    with SlurmCluster(2) as cluster:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        variables = {**os.environ, **cluster.environment, "PYTHONPATH": paths}
        with subprocess.Popen(
            cluster.command(command), env=variables, stderr=subprocess.PIPE, text=True
        ) as training:
            until_s = time.monotonic() + 120
            while not claim.exists() and training.poll() is None and time.monotonic() < until_s:
                time.sleep(0.02)
            # With everything on it, Slurm's daemon too; Slurm would notice some seconds later.
            cluster.network.kill(1)
            cluster.run("scontrol", "update", "NodeName=h1", "State=DOWN", "Reason=died")
            _, said = training.communicate(timeout=120)
        assert "h1" in said, said
    expected = alone({"steps": 20}, 2)
    assert [(one["digest"], one["generation"]) for one in outcomes(tmp_path, 2)] == [(expected, 2)] * 2
