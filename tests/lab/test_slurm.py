import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.lab.helpers import processes_with, soon
from wirewise import lab
from wirewise.errors import InputError, LabError
from wirewise.lab.namespaces import owner_name

pytestmark = pytest.mark.slurm


@pytest.mark.slow
def test_hosts_have_names_addresses_and_links_of_their_own(slurm_cluster):
    told = slurm_cluster.run("srun", "-N3", "--label", "sh", "-c", "echo $(hostname) $(hostname -i)")
    assert sorted(told.splitlines()) == ["0: h0 10.77.0.1", "1: h1 10.77.0.2", "2: h2 10.77.0.3"]
    told = slurm_cluster.run("sinfo", "--noheader", "--format=%P %D %c")
    assert told.splitlines() == ["main* 3 4", "urgent 3 4"]


@pytest.mark.slow
def test_jobs_outlive_a_restart_of_the_controller_and_nothing_outlives_the_cluster():
    left = Path(tempfile.gettempdir(), f"{owner_name().replace(f'-{os.getpid()}-', '-1-')}-killedslurm")
    left.mkdir()
    with lab.SlurmCluster(1) as cluster:
        folder = cluster.folder
        assert not left.exists(), "what a killed owner left goes"
        assert processes_with(str(folder))
        cluster.run("sbatch", "--output=/dev/null", "--wrap=sleep 60")
        for restart in (lambda: None, cluster.restart_controller):
            restart()
            assert soon(lambda: cluster.run("squeue", "--noheader", "--format=%i %T") == "1 RUNNING\n")
        with pytest.raises(LabError, match=r"`srun false` failed: (?s:.*)error: h0: task 0"):
            cluster.run("srun", "false")
    assert not folder.exists()
    assert not processes_with(str(folder))
    with pytest.raises(LabError, match="not open"):
        cluster.command(["true"])


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "munged" else f"/usr/bin/{name}")
    assert lab.slurm_available() == (False, "install munge")
    with pytest.raises(LabError, match="no Slurm can be run here: install munge"), lab.SlurmCluster():
        pass


@pytest.mark.parametrize("asked", [{"hosts": 0}, {"cpus": 0}])
def test_a_cluster_of_nothing_is_refused(asked):
    with pytest.raises(InputError, match=r"for Slurm; expected at least 1 of each"):
        lab.SlurmCluster(**asked)
