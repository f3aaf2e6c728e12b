"""Compiled state of a job queue on clusters: waiting and running jobs, their resources, and the passing of a slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner
from wirewise.trace.queues import QueueArrays

__all__ = [
    "ARRIVED",
    "DONE",
    "LOGGED",
    "RUNNING",
    "SLOT",
    "STEADY",
    "WAITING",
    "QueueState",
    "advance",
    "allot",
    "arrive",
    "fits",
    "gain",
    "leave",
    "new_state",
    "run_slots",
    "slots_left",
    "start",
    "stop",
]

SLOT, ARRIVED, WAITING, RUNNING, LOGGED = range(5)
"""Places in `QueueState.counts`."""

DONE = 1e-9
"""Rounding error that sums of progress may have."""

STEADY = 1 << 30
"""Number of slots that exceeds any job's."""


class QueueState(NamedTuple):
    """Mutable state of a queue; jobs by index in the queue."""

    counts: NDArray[np.int64]
    """Current slot, number of jobs that have arrived, wait and run, and number of log entries, [5]."""
    waiting: NDArray[np.int64]
    """Waiting jobs in order of arrival; only the first `counts[WAITING]` entries are valid, [J]."""
    running: NDArray[np.int64]
    """Running jobs; only the first `counts[RUNNING]` entries are valid, [J]."""
    cluster: NDArray[np.int64]
    """Cluster of each running job, else -1, [J]."""
    held: NDArray[np.int64]
    """CPUs and accelerators of each job, [J, 2]."""
    free: NDArray[np.int64]
    """Free CPUs and accelerators of each cluster, [A, 2]."""
    done: NDArray[np.float64]
    """Progress of each job, [J]."""
    served: NDArray[np.float64]
    """Attained service of each job: slots times accelerators, or CPUs if it has none, [J]."""
    since: NDArray[np.int64]
    """Slot since which each job has its current resources, [J]."""
    finish: NDArray[np.int64]
    """Slot at whose start each job was done, else -1, [J]."""
    changed: NDArray[np.bool_]
    """Whether the resources of a job that had begun were changed in this slot, [J]."""
    log: NDArray[np.int64]
    """Job, cluster, CPUs, accelerators, first slot and slot after the last of each period with constant resources, [L,
    6]; `counts[LOGGED]` may exceed L, and further entries are lost."""


def new_state(queue: QueueArrays, log: int = 0) -> QueueState:
    """Create the state before the first slot, without arrivals.

    Args:
        queue: Jobs and clusters.
        log: Capacity of the log, in entries; 0 for one per job.
    """
    jobs = len(queue.arrival)
    return QueueState(
        counts=np.zeros(5, np.int64),
        waiting=np.empty(jobs, np.int64),
        running=np.empty(jobs, np.int64),
        cluster=np.full(jobs, -1, np.int64),
        held=np.zeros((jobs, 2), np.int64),
        free=queue.room.copy(),
        done=np.zeros(jobs),
        served=np.zeros(jobs),
        since=np.zeros(jobs, np.int64),
        finish=np.full(jobs, -1, np.int64),
        changed=np.zeros(jobs, np.bool_),
        log=np.empty((log or jobs, 6), np.int64),
    )


@inner
def arrive(queue: QueueArrays, state: QueueState) -> None:
    """Queue the jobs that arrive in the current slot."""
    while state.counts[ARRIVED] < len(queue.arrival):
        job = state.counts[ARRIVED]
        if queue.arrival[job] > state.counts[SLOT]:
            return
        state.waiting[state.counts[WAITING]] = job
        state.counts[WAITING] += 1
        state.counts[ARRIVED] += 1


@inner
def fits(queue: QueueArrays, state: QueueState, job: int, cluster: int) -> bool:
    """Whether a cluster may run a job, and has its minimum resources free."""
    kind = queue.kind[job]
    return (
        queue.reach[job, cluster]
        and queue.least[kind, 0] <= state.free[cluster, 0]
        and queue.least[kind, 1] <= state.free[cluster, 1]
    )


@inner
def start(state: QueueState, job: int, cluster: int, cpus: int, gpus: int) -> None:
    """Start a waiting job."""
    last = state.counts[WAITING] - 1
    moved = state.waiting[last]
    place = last
    while moved != job:
        place -= 1
        moved, state.waiting[place] = state.waiting[place], moved
    state.counts[WAITING] = last
    state.running[state.counts[RUNNING]] = job
    state.counts[RUNNING] += 1
    state.cluster[job] = cluster
    state.changed[job] = state.done[job] > 0
    allot(state, job, cpus, gpus)


@inner
def allot(state: QueueState, job: int, cpus: int, gpus: int) -> None:
    """Change the resources of a running job."""
    cluster = state.cluster[job]
    if cpus != state.held[job, 0] or gpus != state.held[job, 1]:
        if state.held[job, 0] + state.held[job, 1] > 0:
            state.changed[job] = state.done[job] > 0
        _note(state, job, state.counts[SLOT])
    state.free[cluster, 0] += state.held[job, 0] - cpus
    state.free[cluster, 1] += state.held[job, 1] - gpus
    state.held[job, 0] = cpus
    state.held[job, 1] = gpus


@inner
def stop(state: QueueState, job: int) -> None:
    """Stop a running job, which waits again at its place in arrival order."""
    _release(state, job, state.counts[SLOT])
    place = state.counts[WAITING]
    while place > 0 and state.waiting[place - 1] > job:
        state.waiting[place] = state.waiting[place - 1]
        place -= 1
    state.waiting[place] = job
    state.counts[WAITING] += 1


@inner
def _note(state: QueueState, job: int, end: int) -> None:
    if end > state.since[job] and state.held[job, 0] + state.held[job, 1] > 0:
        place = state.counts[LOGGED]
        if place < len(state.log):
            entry = state.log[place]
            entry[0], entry[1], entry[2] = job, state.cluster[job], state.held[job, 0]
            entry[3], entry[4], entry[5] = state.held[job, 1], state.since[job], end
        state.counts[LOGGED] += 1
    state.since[job] = end


@inner
def _release(state: QueueState, job: int, end: int) -> None:
    cluster = state.cluster[job]
    _note(state, job, end)
    for what in range(2):
        state.free[cluster, what] += state.held[job, what]
        state.held[job, what] = 0
    state.cluster[job] = -1
    count = state.counts[RUNNING]
    for place in range(count):
        if state.running[place] == job:
            state.running[place] = state.running[count - 1]
            break
    state.counts[RUNNING] = count - 1


@inner
def leave(state: QueueState, job: int) -> None:
    """Remove a running or waiting job from this slot on, done or abandoned."""
    if state.cluster[job] < 0:
        place = 0
        while state.waiting[place] != job:
            place += 1
        state.counts[WAITING] -= 1
        for later in range(place, state.counts[WAITING]):
            state.waiting[later] = state.waiting[later + 1]
    else:
        _release(state, job, state.counts[SLOT])
    state.finish[job] = state.counts[SLOT]


@inner
def gain(queue: QueueArrays, job: int, cpus: int, gpus: int, done: float) -> float:
    """Progress in one slot."""
    kind = queue.kind[job]
    step = queue.progress[kind, cpus, gpus] * queue.pace[job]
    ceiling = queue.ceiling[kind]
    if ceiling > 0.0:
        step *= np.sqrt(ceiling - done)
    return step


@inner
def run_slots(
    queue: QueueArrays, job: int, cpus: int, gpus: int, slots: int, done: float, first: float
) -> tuple[float, int, float]:
    """Run a job alone with fixed resources until it is done.

    Args:
        queue: Jobs and clusters.
        job: Index of the job.
        cpus: Number of its CPUs.
        gpus: Number of its accelerators.
        slots: Maximum number of slots.
        done: Progress before the first slot.
        first: Fraction of the first slot's progress that it keeps.

    Returns:
        Final progress, slots used, and the used fraction of the last one; 0 if that one made no progress.
    """
    taken, share = 0, 0.0
    while taken < slots and done < 1.0 - DONE:
        step = gain(queue, job, cpus, gpus, done) * (first if taken == 0 else 1.0)
        share = min(1.0, (1.0 - done) / step) if step > 0.0 else 0.0
        done += step
        taken += 1
    return done, taken, share


@inner
def advance(queue: QueueArrays, state: QueueState, kept: float) -> None:
    """Advance by one slot: jobs make progress, and finished ones leave.

    Args:
        queue: Jobs and clusters.
        state: State of the queue; updated.
        kept: Fraction of a slot's progress kept by a job that was resized in it.
    """
    place = 0
    while place < state.counts[RUNNING]:
        job = state.running[place]
        cpus, gpus = state.held[job, 0], state.held[job, 1]
        step = gain(queue, job, cpus, gpus, state.done[job])
        if state.changed[job]:
            step *= kept
            state.changed[job] = False
        state.done[job] += step
        state.served[job] += gpus if gpus > 0 else cpus
        if state.done[job] >= 1.0 - DONE:
            state.finish[job] = state.counts[SLOT] + 1
            _release(state, job, state.counts[SLOT] + 1)
        else:
            place += 1
    state.counts[SLOT] += 1


@inner
def slots_left(queue: QueueArrays, job: int, cpus: int, gpus: int, done: float) -> int:
    """Number of slots that a job needs with these resources from now on; `STEADY` if it never ends."""
    if queue.ceiling[queue.kind[job]] == 0.0:
        step = gain(queue, job, cpus, gpus, done)
        return STEADY if step <= 0.0 else int(np.ceil((1.0 - DONE - done) / step))
    slots = 0
    while done < 1.0 - DONE:
        step = gain(queue, job, cpus, gpus, done)
        if step <= 0.0:
            return STEADY
        done += step
        slots += 1
    return slots
