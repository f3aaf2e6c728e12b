"""Jobs that Slurm runs by a plan: sizes, stops, preemption, drift, jobs of others, hosts that die."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.slurm import ROOT
from wirewise.errors import InputError, LabError
from wirewise.lab import SlurmCluster
from wirewise.trials import slurm_jobs
from wirewise.trials.lab_jobs import JobCommand
from wirewise.trials.slurm_jobs import SlurmJobs, hosts_of_slurm

TINY = "tests.runtime.jobs.tiny:train"
LOOKS = 400
"""Times that Slurm is asked before a job counts as stuck: on a busy machine an answer takes longer, too."""

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def on_head(cluster: SlurmCluster) -> Iterator[None]:
    """Slurm's commands as this process calls them run on the head of a cluster."""
    kept, programs = os.environ.copy(), cluster.folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("sbatch", "scontrol", "scancel", "sinfo", "squeue"):
        words = " ".join(f"'{word}'" for word in cluster.command([f"/usr/bin/{name}"]))
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    os.environ.update(cluster.environment, PATH=f"{programs}:{kept['PATH']}", PYTHONPATH=paths)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def command(folder: Path, name: str, **settings: object) -> JobCommand:
    place = folder / name
    place.mkdir()
    (place / "job.json").write_text(json.dumps({"step_s": 0.05, "steps": 30, **settings}))
    return JobCommand(TINY, place)


def until(jobs: SlurmJobs, job: str, wanted):
    """The first report of a job that is as wanted."""
    looks = looked_s = 0
    while looks < LOOKS:
        for report in jobs.reports():
            if report.job == job and wanted(report):
                return report
        looks, looked_s = looks + (jobs._looked_s != looked_s), jobs._looked_s
        time.sleep(0.05)
    raise AssertionError(f"{job} did not come so far while Slurm was asked {LOOKS} times")


def steps(report) -> bool:
    return any(line.step >= 3 for line in report.progress)


def ended(report) -> bool:
    return report.state != "running"


def test_e3_a_plan_is_carried_out_by_slurm(slurm_cluster, tmp_path):
    """Placed, stopped, put back with another size, preempted, gone on with; jobs of others are let alone."""
    foreign = slurm_cluster.run(
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sbatch", "--parsable", "--output=/dev/null",
        "--chdir=/", "--nodelist=h2", "--wrap=sleep 300",
    ).strip()  # fmt: skip
    with on_head(slurm_cluster):
        assert hosts_of_slurm() == ["h0", "h1", "h2"]
        with SlurmJobs(["h0", "h1"], {"a": command(tmp_path, "a", steps=2000)}) as jobs:
            jobs.start("a", 0, 2, 2)
            until(jobs, "a", steps)
            assert jobs.drift() == []
            number = jobs._numbers["a"]
            jobs.stop("a")
            assert until(jobs, "a", ended).state == "stopped"
            jobs.start("a", 1, 1, 1)
            report = until(jobs, "a", steps)
            assert report.progress[0].step > 3 and jobs._numbers["a"] == number
            # Three steps may be quicker than the time between two questions to Slurm.
            jobs._look(now=True)
            row = jobs._rows[number]
            assert (row.hosts, row.cpus) == ("h1", 1)
            # Somebody else's urgent job takes the whole host.
            urgent = slurm_cluster.run(
                "sbatch", "--parsable", "--partition=urgent", "--exclusive", "--nodelist=h1", "--output=/dev/null",
                "--wrap=sleep 300",
            ).strip()  # fmt: skip
            report = until(jobs, "a", ended)
            assert (report.state, report.words) == ("failed", "Slurm put it back into the queue")
            jobs.start("a", 1, 2, 1)
            assert jobs.drift()[0].startswith("a is planned on h1 with 2 cpus; it waits: ")
            slurm_cluster.run("scancel", urgent)
            report = until(jobs, "a", steps)
            assert report.progress[-1].step > 3 and jobs.drift() == []
        left = slurm_cluster.run("squeue", "--noheader", "--format=%i").split()
        assert left == [foreign]
        with SlurmJobs(["h2"], {}) as jobs:
            assert f"job {foreign} of nobody runs on h2 with 1 cpus" in jobs.drift()[0]
        assert slurm_cluster.run("squeue", "--noheader", "--format=%i %T").split() == [foreign, "RUNNING"]
        slurm_cluster.run("scancel", foreign)


def test_a_job_that_fails_says_so(slurm_cluster, tmp_path):
    tasks = {"b": JobCommand("tests.runtime.jobs.tiny:nothing", tmp_path / "b")}
    with on_head(slurm_cluster), SlurmJobs(["h0", "h1"], tasks) as jobs:
        jobs.start("b", 1, 1, 1)
        report = until(jobs, "b", ended)
        assert report.state == "failed"
        assert "FAILED: AttributeError: module 'tests.runtime.jobs.tiny' has no" in report.words
        with pytest.raises(LabError, match="job 'c' is to have 1 cpus"):
            jobs.start("c", 0, 1, 1)
        with pytest.raises(InputError, match="Slurm has no host 'h9'; expected some of h0, h1, h2"):
            SlurmJobs(["h9"], {})


def test_e5_a_dead_host_is_seen_and_its_job_goes_on_elsewhere(tmp_path):
    with SlurmCluster(2) as cluster, on_head(cluster):
        with SlurmJobs(["h0", "h1"], {"a": command(tmp_path, "a", steps=2000)}) as jobs:
            jobs.start("a", 0, 1, 1)
            until(jobs, "a", steps)
            restart = threading.Thread(target=cluster.restart_controller)
            restart.start()
            while restart.is_alive():
                until(jobs, "a", steps)
            restart.join()
            cluster.network.kill(0)
            assert until(jobs, "a", ended).state == "failed"
            assert not jobs.alive(0) and jobs.alive(1)
            # What is left of it goes quickly.
            (tmp_path / "a" / "job.json").write_text('{"step_s": 0, "steps": 2000}')
            jobs.start("a", 1, 1, 1)
            assert until(jobs, "a", ended).state == "done"


def test_commands_that_are_missing_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"`sinfo .*cannot be run: No such file"):
        hosts_of_slurm()
    monkeypatch.setattr(slurm_jobs, "_CALL_S", 0.1)
    with pytest.raises(LabError, match=r"did not end within 0\.1 s"):
        slurm_jobs._call(sys.executable, "-c", "import time; time.sleep(9)")
    with pytest.raises(LabError, match=r"failed: why"):
        slurm_jobs._call("/bin/sh", "-c", "echo why >&2; exit 1")
