"""Observation of queues by a policy: clusters, waiting jobs in their windows, and running jobs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.sim.jobs.engine import RUNNING, SLOT, STEADY, WAITING, QueueState, slots_left
from wirewise.trace.queues import QueueArrays

__all__ = [
    "ACTIVE",
    "CLUSTER",
    "MOST_RUNNING",
    "OPTIONS",
    "PENDING",
    "UNITS",
    "Views",
    "new_views",
    "write_amounts",
    "write_view",
]

CLUSTER, PENDING, ACTIVE, OPTIONS = 6, 7, 6, 6
"""Features of a cluster, of a job that waits, of one that runs, and of an amount that a job may be given."""
MOST_RUNNING = 32
"""Maximum number of a cluster's running jobs in an observation."""
UNITS = 16
"""Numbers of CPUs and accelerators by which features are normalised."""


class Views(NamedTuple):
    """Observation of E queues with A clusters, windows of W jobs, and P = A W positions for waiting jobs."""

    cluster: NDArray[np.float32]
    """Features of clusters: free and total resources, waiting and running jobs, [E, A, CLUSTER]."""
    pending: NDArray[np.float32]
    """Features of waiting jobs: smallest and fastest amounts, slots with both, slots waited, [E, P, PENDING]."""
    adjacent: NDArray[np.bool_]
    """Windows that hold a job, [E, A, P]."""
    window: NDArray[np.int64]
    """Position of each job of a window, or -1, [E, A, W]."""
    active: NDArray[np.float32]
    """Features of running jobs: amounts, progress, slots left, slots so far, [E, A, MOST_RUNNING, ACTIVE]."""
    runs: NDArray[np.bool_]
    """Whether a position of `active` is occupied, [E, A, MOST_RUNNING]."""
    job: NDArray[np.int64]
    """Index of the job at each position, [E, P]."""
    counts: NDArray[np.int64]
    """Number of occupied positions, [E]."""


def new_views(queues: int, clusters: int, window: int) -> Views:
    """Allocate observations of several queues."""
    places = clusters * window
    return Views(
        cluster=np.zeros((queues, clusters, CLUSTER), np.float32),
        pending=np.zeros((queues, places, PENDING), np.float32),
        adjacent=np.zeros((queues, clusters, places), np.bool_),
        window=np.full((queues, clusters, window), -1, np.int64),
        active=np.zeros((queues, clusters, MOST_RUNNING, ACTIVE), np.float32),
        runs=np.zeros((queues, clusters, MOST_RUNNING), np.bool_),
        job=np.zeros((queues, places), np.int64),
        counts=np.zeros(queues, np.int64),
    )


@outer
def write_view(
    forecast: QueueArrays,
    state: QueueState,
    slots: NDArray[np.int64],
    best: NDArray[np.int64],
    views: Views,
    number: int,
) -> None:
    """Write the observation of a queue.

    Args:
        forecast: Jobs and clusters with expected progress.
        state: State of the queue.
        slots: Number of slots of a whole job of each kind, [K, CPUs + 1, accelerators + 1].
        best: Smallest amount as fast as any within given resources, [K, CPUs + 1, accelerators + 1, 2].
        views: Views to write to.
        number: Index of the queue in it.
    """
    clusters, window = views.window.shape[1:]
    views.adjacent[number] = False
    views.window[number] = -1
    views.runs[number] = False
    views.counts[number] = 0
    for place in range(state.counts[WAITING]):
        _see_waiting(forecast, state, slots, best, views, number, state.waiting[place], window)
    waiting = np.zeros(clusters, np.int64)
    for place in range(state.counts[WAITING]):
        for cluster in range(clusters):
            waiting[cluster] += forecast.reach[state.waiting[place], cluster]
    running = np.zeros(clusters, np.int64)
    for place in range(state.counts[RUNNING]):
        job = state.running[place]
        cluster = state.cluster[job]
        if running[cluster] < MOST_RUNNING:
            _see_running(forecast, state, views.active[number, cluster, running[cluster]], job)
            views.runs[number, cluster, running[cluster]] = True
        running[cluster] += 1
    for cluster in range(clusters):
        features = views.cluster[number, cluster]
        for what in range(2):
            features[what] = state.free[cluster, what] / UNITS
            features[2 + what] = forecast.room[cluster, what] / UNITS
        features[4] = np.log1p(waiting[cluster]) / 3
        features[5] = running[cluster] / 8


@inner
def _see_waiting(
    forecast: QueueArrays, state: QueueState, slots: NDArray[np.int64], best: NDArray[np.int64], views: Views,
    number: int, job: int, window: int,
) -> None:  # fmt: skip
    at = views.counts[number]
    seen = False
    for cluster in range(views.window.shape[1]):
        if forecast.reach[job, cluster]:
            for place in range(window):
                if views.window[number, cluster, place] < 0:
                    views.window[number, cluster, place] = at
                    views.adjacent[number, cluster, at] = True
                    seen = True
                    break
    if not seen:
        return
    kind = forecast.kind[job]
    c, g = forecast.least[kind, 0], forecast.least[kind, 1]
    i, j = best[kind, -1, -1, 0], best[kind, -1, -1, 1]
    features = views.pending[number, at]
    features[0], features[1], features[2] = c / UNITS, g / UNITS, _log(slots[kind, c, g])
    features[3], features[4], features[5] = i / UNITS, j / UNITS, _log(slots[kind, i, j])
    features[6] = _log(state.counts[SLOT] - forecast.arrival[job])
    views.job[number, at] = job
    views.counts[number] = at + 1


@inner
def _see_running(forecast: QueueArrays, state: QueueState, features: NDArray[np.float32], job: int) -> None:
    c, g = state.held[job, 0], state.held[job, 1]
    features[0], features[1], features[2] = c / UNITS, g / UNITS, state.done[job]
    features[3] = _log(slots_left(forecast, job, c, g, state.done[job]))
    features[4] = _log(state.counts[SLOT] - state.since[job])
    features[5] = 1.0


@outer
def write_amounts(
    forecast: QueueArrays,
    state: QueueState,
    slots: NDArray[np.int64],
    amounts: NDArray[np.int64],
    jobs: NDArray[np.int64],
    features: NDArray[np.float32],
    legal: NDArray[np.bool_],
) -> None:
    """Write the features of each amount for one job of each cluster.

    Args:
        forecast: Jobs and clusters with expected progress.
        state: State of the queue.
        slots: Number of slots of a whole job of each kind, [K, CPUs + 1, accelerators + 1].
        amounts: CPUs and accelerators of the amounts of each kind, [K, O, 2]; zeros first, which lets a job wait, and
            as padding.
        jobs: Job index for each cluster, or -1, [A].
        features: Output for the features of amounts, [A, O, OPTIONS].
        legal: Output for whether an amount is feasible, [A, O].
    """
    legal[:] = False
    legal[:, 0] = True
    features[:] = 0.0
    features[:, 0, 5] = 1.0
    for cluster in range(len(jobs)):
        if jobs[cluster] < 0:
            continue
        kind = forecast.kind[jobs[cluster]]
        free_c, free_g = state.free[cluster, 0], state.free[cluster, 1]
        for option in range(1, amounts.shape[1]):
            c, g = amounts[kind, option, 0], amounts[kind, option, 1]
            if c + g > 0 and c <= free_c and g <= free_g:
                legal[cluster, option] = True
                one = features[cluster, option]
                one[0], one[1], one[2] = c / UNITS, g / UNITS, _log(slots[kind, c, g])
                one[3], one[4] = (free_c - c) / UNITS, (free_g - g) / UNITS


@inner
def _log(slots: int) -> float:
    return np.log1p(min(slots, STEADY)) / 4
