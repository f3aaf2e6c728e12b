"""The page of schedulers: who is best, whether the policy beats the tuned rule, and real jobs over time."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.results import ExecutedJob, ExecutedQueue, ExecutedShare, QueueMoment
from wirewise_papers.tapfinger.page import jobs_comparison, jobs_html
from wirewise_papers.tapfinger.records import JobsRun, RealQueue, SchedulerRecord


def scheduler(mean):
    return SchedulerRecord(
        mean_jct=mean,
        ci95=(mean - 0.25, mean + 0.25),
        makespan=9 * mean,
        p99=3 * mean,
        quantiles=tuple(mean * n / 10 for n in range(21)),
    )


def job(name, *shares, words="", failures=()):
    return ExecutedJob(
        name=name,
        kind="text",
        steps=10,
        arrival_s=0.0,
        ended_s=9.0,
        shares=tuple(
            ExecutedShare(cluster=cluster, cpus=2, gpus=1, start_s=start_s, end_s=end_s)
            for cluster, start_s, end_s in shares
        ),
        words=words,
        failures=failures,
    )


REAL = RealQueue(
    planner="srpt",
    predicted_jct_s=5.0,
    measured_jct_s=5.2,
    error=5.0 / 5.2 - 1,
    predicted_makespan_s=9.5,
    measured_makespan_s=9.0,
    slot_s=2.0,
    clusters=("left", "right"),
    predicted_ends_s={"a": 8.0, "<b>": 9.5},
    executed=ExecutedQueue(
        jobs=(
            job("a", (0, 0.0, 4.0), (1, 6.0, 9.0)),
            job("<b>", (1, 0.0, 1.0), words="failed 3 times", failures=("rank 0 ended with 1: <oops>",)),
        ),
        moments=(QueueMoment(at_s=0.1, waiting=1, running=2), QueueMoment(at_s=2.0, waiting=0, running=1)),
        starts_s=(0.3,),
        stops_s=(0.2,),
        notes=("cluster left is dead",),
    ),
    start_s=0.3,
    stop_s=0.2,
    kept=0.75,
    step_s={"text": {"1x1": 0.5}},
)
RUN = JobsRun(
    queues="8 jobs",
    seeds=3,
    kept=0.5,
    schedulers={"heft": scheduler(3.0), "tapfinger": scheduler(3.1), "threshold": scheduler(3.2)},
    real=REAL,
)


def test_real_jobs_and_their_failures_are_on_the_page():
    page = jobs_html(RUN)
    for text in (
        "Real jobs under srpt",
        "Lengths of the queue",
        "given up",
        "cluster left is dead",
        "right 2x1",
    ):
        assert text in page
    assert "&lt;oops&gt;" in page and "<oops>" not in page
    assert "Real jobs" not in jobs_html(msgspec.structs.replace(RUN, real=None))


def test_the_tuned_rule_stands_beside_and_a_loss_is_said():
    said = jobs_comparison(RUN)
    assert "heft takes 3.00 slots" in said.sentence and "0.969 of the time of the tuned" in said.sentence
    assert said.goal == pytest.approx(3.2) and said.rows[2][0] == "threshold"
    worse = {"threshold": scheduler(3.0), "tapfinger": scheduler(3.3)}
    lost = jobs_comparison(msgspec.structs.replace(RUN, schedulers=worse))
    assert "THE LEARNED POLICY DOES NOT BEAT the tuned threshold rule: 1.100" in lost.sentence
