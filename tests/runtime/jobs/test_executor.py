"""Decisions carried out slot by slot, with a launcher that runs nothing: order, failures, clusters that die."""

from __future__ import annotations

import time

import pytest

from wirewise.errors import InputError, PlanError
from wirewise.planners.jobs import JobProblem
from wirewise.planners.jobs.online import online_policy
from wirewise.runtime.jobs import JobReport, Progress, QueueExecutor, executor
from wirewise.sim.jobs.engine import start
from wirewise.trace.queues import EdgeCluster, JobKind, JobQueue, QueuedJob

SLOT_S = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(executor, "_LOOK_S", 0.004)


class FakeLauncher:
    """A processor does a step each time that reports are asked for; jobs end, fail and clusters die as told.

    However slow the machine is, a job is never further than it has been asked for.
    """

    def __init__(self, steps, fails=(), dies=None):
        self.steps, self.fails, self.dies = steps, dict(fails), dies
        self.running, self.done, self.calls, self.ticks = {}, {}, [], 0

    def start(self, job, cluster, cpus, gpus):
        assert job not in self.running
        self.calls.append(("start", job, cluster, cpus, gpus))
        self.running[job] = [cluster, cpus, self.done.get(job, 0), False]

    def stop(self, job):
        self.calls.append(("stop", job))
        self.running[job][3] = True

    def requeue(self, job):
        self.calls.append(("requeue", job))
        self.done[job] = self.running.pop(job)[2]

    def alive(self, cluster):
        return self.dies is None or cluster != self.dies[0] or self.ticks < self.dies[1]

    def reports(self):
        self.ticks += 1
        now_s, found = time.monotonic(), []
        for job, own in list(self.running.items()):
            cluster, cpus, first, asked = own
            done = own[2] = min(first + cpus, self.steps[job])
            lines = [Progress(first, now_s, "begin")] if first == self.done.get(job, 0) else []
            lines.append(Progress(done, now_s))
            state, words = "running", ""
            if not self.alive(cluster):
                state, words = "failed", "the host died"
            elif self.fails.get(job, 0):
                self.fails[job] -= 1
                state, words = "failed", "as it was told to"
            elif done == self.steps[job]:
                state = "done"
            elif asked:
                state = "stopped"
            if state != "running":
                self.done[job] = done
                del self.running[job]
            found.append(JobReport(job, state, now_s, tuple(lines), words))
        return found


def queue_of(jobs, clusters=((2, 0),), reach=()):
    return JobQueue(
        queue=tuple(
            QueuedJob(name=f"job{n}", kind="k", arrival=arrival, clusters=reach)
            for n, arrival in enumerate(jobs)
        ),
        kinds={"k": JobKind(progress=((0.0,), (0.5,), (1.0,)))},
        clusters=tuple(EdgeCluster(name=f"c{n}", cpus=c, gpus=g) for n, (c, g) in enumerate(clusters)),
        slot_s=SLOT_S,
    )


def executed(queue, rule="heft", steps=12, **more):
    of_jobs = {job.name: steps for job in queue.queue}
    launcher = FakeLauncher(of_jobs, **more)
    policy, _ = online_policy(JobProblem(queue), rule)
    return QueueExecutor(queue, of_jobs, policy, launcher).run(), launcher


def test_jobs_run_one_after_the_other_from_their_slots_on():
    found, launcher = executed(queue_of([0, 0, 5]))
    assert [call[:2] for call in launcher.calls] == [("start", "job0"), ("start", "job1"), ("start", "job2")]
    for job in found.jobs:
        [share] = job.shares
        assert not job.words and share.start_s >= job.arrival_s and share.end_s == job.ended_s
    assert found.mean_completion_s > 0 and found.moments[0].running == 1 and found.moments[0].waiting == 1


def test_a_job_that_is_given_something_else_is_stopped_before_it_starts_again():
    # Everyone has a part of what is there, and those that are left grow when others are done.
    found, launcher = executed(queue_of([0, 2]), rule="optimus", steps=40)
    of_first = [call for call in launcher.calls if call[1] == "job0"]
    assert of_first[0] == ("start", "job0", 0, 2, 0) and of_first[1] == ("stop", "job0")
    assert of_first[2] == ("start", "job0", 0, 1, 0)
    assert len(found.stops_s) >= 1 and len(found.jobs[0].shares) >= 2
    ends = [share.end_s for share in found.jobs[0].shares]
    assert ends == sorted(ends)


def test_a_job_that_fails_goes_on_and_one_that_always_fails_is_given_up():
    found, _ = executed(queue_of([0, 0]), fails={"job0": 1, "job1": 99})
    first, second = found.jobs
    assert first.failures == ("as it was told to",) and not first.words
    assert len(second.failures) == 3 and second.words.startswith("failed 3 times, at last: as it was told to")
    assert any("job1 is given up" in note for note in found.notes)
    assert found.mean_completion_s == first.completion_s


def test_jobs_of_a_dead_cluster_go_elsewhere_or_are_given_up():
    queue = queue_of([0, 0, 0], clusters=((2, 0), (1, 0)))
    found, launcher = executed(queue, steps=30, dies=(0, 5))
    assert all(not job.words for job in found.jobs)
    assert any("cluster c0 is dead" in note for note in found.notes)
    assert {call[2] for call in launcher.calls[2:] if call[0] == "start"} == {1}
    bound = queue_of([0], clusters=((2, 0), (1, 0)), reach=(0,))
    found, _ = executed(bound, steps=60, dies=(0, 5))
    assert found.jobs[0].words == "no cluster is left that may run it: c0 died"


def test_a_silent_job_is_taken_away():
    queue, launcher = queue_of([0]), FakeLauncher({"job0": 10**6})
    launcher.reports = list
    policy, _ = online_policy(JobProblem(queue), "heft")
    found = QueueExecutor(queue, {"job0": 10**6}, policy, launcher, retries=0, silence_s=0.1).run()
    assert ("requeue", "job0") in launcher.calls
    assert found.jobs[0].words == "failed 1 times, at last: no step for 0.1 s"


def test_a_job_that_does_not_leave_is_taken_away():
    queue = queue_of([0, 1])
    launcher = FakeLauncher({"job0": 60, "job1": 10})
    launcher.stop = lambda job: launcher.calls.append(("stop", job))
    policy, _ = online_policy(JobProblem(queue), "optimus")
    found = QueueExecutor(queue, launcher.steps, policy, launcher, stop_s=0.05).run()
    assert ("requeue", "job0") in launcher.calls and not any(job.words for job in found.jobs)


def test_a_policy_that_lets_jobs_wait_for_ever_is_refused():
    queue = queue_of([0])
    with pytest.raises(PlanError, match="the policy lets 1 jobs wait though nothing runs"):
        QueueExecutor(queue, {"job0": 5}, lambda believed, state: None, FakeLauncher({"job0": 5})).run()
    with pytest.raises(InputError, match="job 'job0' has 0 steps"):
        QueueExecutor(queue, {}, start, FakeLauncher({}))
