"""Slots pass as a plain model in Python says."""

from __future__ import annotations

from math import sqrt, tanh

import numpy as np
import pytest

from wirewise.sim.jobs import draw_queue
from wirewise.sim.jobs.engine import (
    LOGGED,
    RUNNING,
    STEADY,
    WAITING,
    advance,
    allot,
    arrive,
    fits,
    new_state,
    slots_left,
    start,
    stop,
)
from wirewise.trace import EdgeCluster, JobKind, JobQueue, QueuedJob


def text_slots(gpus: int) -> int:
    done, slots = 0.0, 0
    while done < 1:
        done += tanh(gpus / 16) * sqrt(1.2 - done)
        slots += 1
    return slots


def test_s1_jobs_alone_take_four_and_two_slots():
    queue = draw_queue().arrays()
    image, text = (int(np.flatnonzero(queue.kind == kind)[0]) for kind in (0, 1))
    assert {slots_left(queue, image, 2, gpus, 0.0) for gpus in range(1, 17)} == {4}
    assert [slots_left(queue, text, 2, gpus, 0.0) for gpus in range(1, 17)] == [
        text_slots(g) for g in range(1, 17)
    ]
    assert slots_left(queue, text, 16, 16, 0.0) == 2
    assert slots_left(queue, text, 2, 0, 0.0) == STEADY


def test_jobs_that_stop_and_are_resized_lose_what_they_shall():
    queue = JobQueue(
        queue=tuple(QueuedJob(name=str(n), kind="even", arrival=n) for n in range(3)),
        kinds={"even": JobKind(progress=((0.0,), (0.25,), (0.5,)))},
        clusters=(EdgeCluster(name="x", cpus=2, gpus=0),),
    ).arrays()
    state = new_state(queue, 8)
    arrive(queue, state)
    assert state.counts[WAITING] == 1 and fits(queue, state, 0, 0)
    start(state, 0, 0, 1, 0)
    advance(queue, state, 0.5)
    assert state.done[0] == 0.25
    allot(state, 0, 2, 0)
    advance(queue, state, 0.5)
    assert state.done[0] == 0.5
    arrive(queue, state)
    assert not fits(queue, state, 1, 0)
    stop(state, 0)
    assert state.waiting[: state.counts[WAITING]].tolist() == [0, 1, 2] and state.free.tolist() == [[2, 0]]
    start(state, 2, 0, 1, 0)
    start(state, 0, 0, 1, 0)
    assert state.waiting[: state.counts[WAITING]].tolist() == [1]
    advance(queue, state, 0.5)
    assert state.done.tolist() == [0.625, 0.0, 0.25] and state.counts[RUNNING] == 2
    for _ in range(3):
        advance(queue, state, 0.5)
    assert state.finish.tolist() == [5, -1, 6] and state.free.tolist() == [[2, 0]]
    assert state.counts[LOGGED] == 4
    assert state.log[:4].tolist() == [
        [0, 0, 1, 0, 0, 1],
        [0, 0, 2, 0, 1, 2],
        [0, 0, 1, 0, 2, 5],
        [2, 0, 1, 0, 2, 6],
    ]


@pytest.mark.parametrize("pace", [0.5, 2.0])
def test_a_job_has_its_own_pace(pace):
    queue = JobQueue(
        queue=(QueuedJob(name="a", kind="even", arrival=0, pace=pace),),
        kinds={"even": JobKind(progress=((0.0,), (0.25,)))},
        clusters=(EdgeCluster(name="x", cpus=1, gpus=0),),
    ).arrays()
    assert slots_left(queue, 0, 1, 0, 0.0) == 4 / pace
