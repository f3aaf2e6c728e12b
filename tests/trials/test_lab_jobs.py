"""Real jobs on hosts: started, stopped, resized; killed ranks, failing jobs, dead hosts; nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from wirewise.errors import LabError
from wirewise.lab import Lab, Loopback
from wirewise.lab.limits import control_groups
from wirewise.planners.jobs import JobProblem
from wirewise.planners.jobs.online import online_policy
from wirewise.runtime.jobs import QueueExecutor
from wirewise.runtime.jobs.training import SharedStates
from wirewise.trace.queues import EdgeCluster, JobKind, JobQueue, QueuedJob
from wirewise.trials.lab_jobs import JobCommand, LabJobs
from wirewise_papers.tapfinger.worker import ClusterJob, write_parts

TINY = "tests.runtime.jobs.tiny:train"
TINY_FILE = f"{Path(__file__).parents[1]}/runtime/jobs/tiny.py:train"
WAIT_S = 60.0

pytestmark = [pytest.mark.dist, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared():
    """Two clusters of this machine; each test adds jobs of its own names."""
    preload = ["wirewise_papers.tapfinger.warm"]
    with LabJobs(Loopback(), 2, {}, processor=0.5, preload=preload) as launcher:
        yield launcher
    groups = control_groups()
    assert groups is None or not list(groups.glob(f"wirewise-{os.getpid()}-*"))


def command(folder, name, **settings):
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "job.json").write_text(json.dumps({"step_s": 0.02, "steps": 40, **settings}))
    return JobCommand(TINY, place)


def until(launcher, job, wanted, said=None):
    """Reports until one of a job is as wanted."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        for report in launcher.reports():
            if said is not None:
                said.append(report)
            if report.job == job and wanted(report):
                return report
        time.sleep(0.01)
    raise AssertionError(f"{job} did not come so far within {WAIT_S} s")


def at_step(step):
    return lambda report: any(line.step >= step for line in report.progress)


def ended(report):
    return report.state != "running"


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def total(folder):
    states = SharedStates(folder / "states", ["sum", "count"])
    step, wrong = states.newest()
    return step, float(states.read(step)["sum"]["of"]), wrong


def test_two_jobs_start_stop_and_go_on_with_other_amounts(shared, tmp_path):
    launcher = shared
    # However late it is stopped, it has not ended.
    launcher.add("a", command(tmp_path, "a", waits_at=30))
    launcher.add("b", command(tmp_path, "b", steps=2000))
    launcher.start("a", 0, 2, 2)
    launcher.start("b", 1, 1, 1)
    until(launcher, "a", at_step(5))
    pids = [pid for job in "ab" for pid in launcher.pids(job)]
    assert len(pids) == 3 == len(alive(pids))
    launcher.stop("a")
    (tmp_path / "a" / "go").touch()
    assert until(launcher, "a", ended).state == "stopped"
    stopped_at, _, _ = total(tmp_path / "a")
    assert 5 <= stopped_at < 40
    with pytest.raises(LabError, match="job 'b' runs already"):
        launcher.start("b", 0, 1, 1)
    said = []
    launcher.start("a", 1, 1, 3)
    report = until(launcher, "a", ended, said)
    begin = next(line for one in said if one.job == "a" for line in one.progress if line.event == "begin")
    assert report.state == "done" and begin.step == stopped_at
    # Nothing was done twice, and nothing left out, whoever did it.
    assert total(tmp_path / "a") == (40, sum(range(40)), [])
    launcher.requeue("b")
    pids += launcher.pids("b")
    assert launcher.reports() == [] and not alive(pids)


def test_a_killed_rank_a_failing_job_and_a_torn_state(shared, tmp_path):
    launcher = shared
    launcher.add("c", command(tmp_path, "c", fail_at=3))
    launcher.add("a", command(tmp_path, "a", steps=60, waits_at=55)._replace(target=TINY_FILE))
    launcher.start("c", 0, 2, 2)
    report = until(launcher, "c", ended)
    assert report.state == "failed"
    assert report.words == "rank 0 ended with exit code 1: ValueError: this job always fails at its step"
    launcher.start("a", 0, 2, 2)
    until(launcher, "a", at_step(50))
    pids = launcher.pids("a")
    os.kill(pids[1], signal.SIGKILL)
    report = until(launcher, "a", ended)
    assert (report.state, report.words) == ("failed", "rank 1 was killed by SIGKILL") and not alive(pids)
    *_, older, last = SharedStates(tmp_path / "a" / "states", ["sum", "count"]).steps()
    newest = tmp_path / "a" / "states" / f"step-{last}.sum.state"
    newest.write_bytes(newest.read_bytes()[:100])
    (tmp_path / "a" / "go").touch()
    said = []
    launcher.start("a", 0, 1, 1)
    assert until(launcher, "a", ended, said).state == "done"
    [begin] = [line for one in said for line in one.progress if line.event == "begin"]
    assert begin.note.endswith(f"it resumes from step {begin.step}") and newest.name in begin.note
    assert begin.step == older and total(tmp_path / "a") == (60, sum(range(60)), [])


@pytest.mark.lab
def test_a_host_that_dies_takes_its_jobs_and_the_others_go_on(tmp_path):
    names = [f"job{n}" for n in range(3)]
    jobs = {name: command(tmp_path, name, steps=60) for name in names}
    queue = JobQueue(
        queue=tuple(QueuedJob(name=name, kind="k", arrival=0) for name in names),
        kinds={"k": JobKind(progress=((0.0,) * 2, (0.0, 0.3)), gpus=1)},
        clusters=(EdgeCluster(name="left", cpus=1, gpus=1), EdgeCluster(name="right", cpus=1, gpus=1)),
        slot_s=0.5,
    )
    struck = []
    with Lab(2, "10gbit") as network, LabJobs(network, 2, jobs) as launcher:

        def policy(believed, state):
            decide(believed, state)
            pids = [launcher.pids(name) for name in names]
            if not struck and all(pids[:2]):
                struck.extend(pids[0] + pids[1])
                network.kill(0)

        decide, _ = online_policy(JobProblem(queue), "heft")
        found = QueueExecutor(queue, dict.fromkeys(names, 60), policy, launcher).run()
    assert struck and not alive(struck)
    assert not any(job.words for job in found.jobs) and any(
        "cluster left is dead" in note for note in found.notes
    )
    assert all(total(tmp_path / name) == (60, sum(range(60)), []) for name in names)
    lost = [job for job in found.jobs if job.failures]
    assert [one.failures for one in lost] == [("the host of cluster 0 died",)]
    assert [share.cluster for share in lost[0].shares] == [0, 1]


@pytest.mark.parametrize("kind", ["text", "pipeline", "graph"])
def test_real_kinds_go_on_with_another_number_of_ranks(shared, tmp_path, kind):
    parts = write_parts(tmp_path / "parts", 4, nodes=200)
    # Most of its steps are left when it is stopped, and on two accelerators they take two seconds.
    settings = ClusterJob(kind=kind, steps=24, accelerator_s=0.2, parts=str(parts))
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(settings))
    shared.add(kind, JobCommand("wirewise_papers.tapfinger.worker:train", tmp_path))
    said = []
    shared.start(kind, 0, 2, 2)
    until(shared, kind, at_step(3))
    shared.stop(kind)
    assert until(shared, kind, ended, said).state == "stopped"
    shared.start(kind, 1, 2, 4)
    report = until(shared, kind, ended, said)
    assert report.state == "done", report.words
    begins = [line.step for one in said for line in one.progress if line.event == "begin"]
    assert len(begins) == 1 and begins[0] >= 3
