"""Scheduling rules of clusters, compiled: which job starts where, and with which resources.

Some start jobs and let them end; they look at each cluster's window of the oldest jobs that it may run, but `sjf` and
`heft` at all that wait. The others reallot all that a cluster has in each slot, so jobs grow, shrink, stop and go on.

| rule | what it does |
|---|---|
| `random` | a job of the window and an amount, drawn (TapFinger, section VI) |
| `min` | a job of the window, drawn, with the least that it starts with (TapFinger's Min) |
| `threshold` | the oldest first, each with what its kind is due, as soon as its kind's floor is free |
| `marginal-gain` | all that fit with the least, then what saves most slots a unit (Optimus without stopping jobs) |
| `water-filling` | `marginal-gain` without what is worth less than the last accelerator is to those that run |
| `sjf` | the shortest job of those that fit, with the least amount that is as quick as all that is free |
| `heft` | the longest job first, where it would finish earliest, if that is without waiting |
| `equal-share` | the oldest first, each with an equal share of the cluster (TapFinger's form of Tiresias) |
| `optimus` | reallots by `marginal-gain` |
| `tiresias` | reallots: least attained service first, in two levels, each with what its kind is due |
| `srpt` | reallots: shortest remaining time first, with the least amount that is as quick as all that is left |
| `gavel` | reallots: the least to all, then what helps, first to who is furthest behind its progress alone |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.sim.jobs.engine import (
    ARRIVED,
    RUNNING,
    SLOT,
    STEADY,
    WAITING,
    QueueState,
    advance,
    allot,
    arrive,
    fits,
    slots_left,
    start,
    stop,
)
from wirewise.trace.queues import QueueArrays

__all__ = [
    "REALLOTTING",
    "RULES",
    "Knowledge",
    "decide_once",
    "expected_queue",
    "hold_for_overdue",
    "knowledge",
    "run_rule",
    "start_all",
]

RULES = (
    "random", "min", "threshold", "marginal-gain", "water-filling", "sjf", "heft", "equal-share",
    "optimus", "tiresias", "srpt", "gavel",
)  # fmt: skip
"""Names of rules, in the order of their numbers."""
(
    _RANDOM, _MIN, _THRESHOLD, _MARGINAL, _FILLING, _SJF, _HEFT, _EQUAL, _OPTIMUS, _TIRESIAS, _SRPT, _GAVEL,
) = range(12)  # fmt: skip
REALLOTTING = frozenset(RULES[_OPTIMUS:])
"""Rules that stop and resize running jobs."""


class Knowledge(NamedTuple):
    """Scheduler's knowledge of kinds of jobs, at the ordinary speed."""

    slots: NDArray[np.int64]
    """Slots of a whole job, [K, processors + 1, accelerators + 1]."""
    best: NDArray[np.int64]
    """Smallest amount that is as fast as any within each limit, [K, processors + 1, accelerators + 1, 2]."""
    due: NDArray[np.int64]
    """Due amount of a kind under `threshold` and `tiresias`, [K, 2]."""
    floor: NDArray[np.int64]
    """Amount that must be free before a kind starts under `threshold`, [K, 2]."""
    window: int
    """Number of jobs in a cluster's window."""
    patience: int
    """Slots after its arrival from which a job precedes all later arrivals; 0 for never."""
    top: NDArray[np.float64]
    """Maximum progress in a slot, [K]; a larger amount gains a job nothing."""


def expected_queue(queue: QueueArrays) -> QueueArrays:
    """Queue as expected by a scheduler that knows the kinds' progress: all jobs at the ordinary speed."""
    return queue._replace(pace=np.ones_like(queue.pace))


def knowledge(forecast: QueueArrays, window: int = 10, patience: int = 0) -> Knowledge:
    """Derive knowledge from the expected progress; each kind gets its fastest amount, and the least as its floor."""
    cpus, gpus = (int(forecast.room[:, what].max()) for what in range(2))
    slots = np.full((len(forecast.least), cpus + 1, gpus + 1), STEADY, np.int64)
    best = np.zeros((*slots.shape, 2), np.int64)
    _know(forecast, slots, best)
    top = forecast.progress.max(axis=(1, 2))
    return Knowledge(slots, best, best[:, -1, -1].copy(), forecast.least.copy(), window, patience, top)


@outer
def _know(queue: QueueArrays, slots: NDArray[np.int64], best: NDArray[np.int64]) -> None:
    kinds, cpus, gpus = slots.shape
    for kind in range(kinds):
        job = _first_of(queue, kind)
        if job < 0:
            continue
        for c in range(cpus):
            for g in range(gpus):
                if c >= queue.least[kind, 0] and g >= queue.least[kind, 1]:
                    slots[kind, c, g] = slots_left(queue, job, c, g, 0.0)
                chosen_c, chosen_g = c, g
                for i, j in ((c, g - 1), (c - 1, g)):
                    if i >= 0 and j >= 0:
                        near_c, near_g = best[kind, i, j, 0], best[kind, i, j, 1]
                        if slots[kind, near_c, near_g] <= slots[kind, chosen_c, chosen_g]:
                            chosen_c, chosen_g = near_c, near_g
                best[kind, c, g, 0], best[kind, c, g, 1] = chosen_c, chosen_g


@inner
def _first_of(queue: QueueArrays, kind: int) -> int:
    for job in range(len(queue.kind)):
        if queue.kind[job] == kind:
            return job
    return -1


@outer
def run_rule(
    rule: int,
    queue: QueueArrays,
    forecast: QueueArrays,
    state: QueueState,
    knowledge: Knowledge,
    kept: float,
    last: int,
    seed: int,
) -> bool:
    """Simulate a rule until all jobs are done.

    Args:
        rule: Index of the rule in `RULES`.
        queue: Jobs, kinds and clusters.
        forecast: Jobs, kinds and clusters with the progress that the scheduler expects.
        state: State before the first slot; updated.
        knowledge: Knowledge of the scheduler.
        kept: Fraction of a slot's progress kept by a job that was resized in it.
        last: Slot at which to give up.
        seed: Seed of randomised rules.

    Returns:
        Whether all jobs are done.
    """
    np.random.seed(seed)  # noqa: NPY002 numba's own generator
    jobs = len(queue.arrival)
    wanted = np.zeros((jobs, 3), np.int64)
    chosen = np.zeros(jobs, np.int64)
    keys = np.zeros(jobs)
    withheld = np.zeros((len(queue.room), 2), np.int64)
    arrived, running = -1, -1
    while True:
        arrive(queue, state)
        if state.counts[WAITING] + state.counts[RUNNING] == 0:
            if state.counts[ARRIVED] == jobs:
                return True
            state.counts[SLOT] = queue.arrival[state.counts[ARRIVED]]
            continue
        if state.counts[SLOT] >= last:
            return False
        # Where nothing was started and nobody came or left since, rules that let jobs end and draw nothing start none.
        if not (
            _THRESHOLD <= rule < _OPTIMUS
            and knowledge.patience == 0
            and state.counts[ARRIVED] == arrived
            and state.counts[RUNNING] == running
        ):
            waiting = state.counts[WAITING]
            _decide(rule, forecast, state, knowledge, wanted, chosen, keys, withheld)
            arrived = state.counts[ARRIVED] if state.counts[WAITING] == waiting else -1
            running = state.counts[RUNNING]
        advance(queue, state, kept)


@outer
def decide_once(rule: int, forecast: QueueArrays, state: QueueState, knowledge: Knowledge, seed: int) -> None:
    """Start, resize and stop jobs by a rule in one slot; arguments as in `run_rule`."""
    np.random.seed(seed)  # noqa: NPY002 numba's own generator
    jobs = len(forecast.arrival)
    wanted, chosen = np.zeros((jobs, 3), np.int64), np.zeros(jobs, np.int64)
    withheld = np.zeros((len(forecast.room), 2), np.int64)
    _decide(rule, forecast, state, knowledge, wanted, chosen, np.zeros(jobs), withheld)


@inner
def _decide(
    rule: int, queue: QueueArrays, state: QueueState, knowledge: Knowledge, wanted: NDArray[np.int64],
    chosen: NDArray[np.int64], keys: NDArray[np.float64], withheld: NDArray[np.int64],
) -> None:  # fmt: skip
    if rule >= _OPTIMUS:
        _reallot(rule, queue, state, knowledge, wanted, chosen, keys)
        return
    _hold_for_overdue(queue, state, knowledge, withheld)
    if rule == _MARGINAL or rule == _FILLING:
        for cluster in range(len(queue.room)):
            _hand_out(queue, state, knowledge, cluster, rule == _FILLING, wanted, chosen)
    elif rule == _SJF or rule == _HEFT:
        while _start_best(rule, queue, state, knowledge):
            pass
    else:
        started = True
        while started:
            started = False
            for cluster in range(len(queue.room)):
                started |= _start_one(rule, queue, state, knowledge, cluster, chosen)
    _give_back(state, withheld)


@inner
def _is_overdue(queue: QueueArrays, state: QueueState, knowledge: Knowledge, job: int) -> bool:
    return knowledge.patience > 0 and state.counts[SLOT] - queue.arrival[job] >= knowledge.patience


@inner
def _hold_for_overdue(
    queue: QueueArrays, state: QueueState, knowledge: Knowledge, withheld: NDArray[np.int64]
) -> None:
    """Start overdue jobs, and withhold a cluster's free resources from others where one does not fit yet."""
    withheld[:] = 0
    place = 0
    while place < state.counts[WAITING] and _is_overdue(queue, state, knowledge, state.waiting[place]):
        job = state.waiting[place]
        kind = queue.kind[job]
        where, most = -1, -1
        for cluster in range(len(queue.room)):
            room, least = queue.room[cluster], queue.least[kind]
            if not queue.reach[job, cluster] or room[0] < least[0] or room[1] < least[1]:
                continue
            free = state.free[cluster, 1] * (len(queue.arrival) + 1) + state.free[cluster, 0]
            if fits(queue, state, job, cluster):
                free += STEADY
            if free > most and withheld[cluster, 0] + withheld[cluster, 1] == 0:
                where, most = cluster, free
        if where >= 0 and most >= STEADY:
            c, g = _quickest(knowledge, kind, state.free[where, 0], state.free[where, 1])
            start(state, job, where, c, g)
            continue
        if where >= 0:
            for what in range(2):
                withheld[where, what] = state.free[where, what]
                state.free[where, what] = 0
        place += 1


@inner
def _give_back(state: QueueState, withheld: NDArray[np.int64]) -> None:
    for cluster in range(len(withheld)):
        for what in range(2):
            state.free[cluster, what] += withheld[cluster, what]


@outer
def hold_for_overdue(
    forecast: QueueArrays, state: QueueState, knowledge: Knowledge, reserved: NDArray[np.int64]
) -> None:
    """Start overdue jobs, and reserve a cluster's free resources where one does not fit yet.

    Args:
        forecast: Jobs, kinds and clusters.
        state: State of the queue; updated.
        knowledge: Knowledge of the scheduler.
        reserved: Output for the reserved free resources, [A, 2]; add to `state.free` after starting other jobs.
    """
    _hold_for_overdue(forecast, state, knowledge, reserved)


@outer
def start_all(forecast: QueueArrays, state: QueueState, knowledge: Knowledge) -> None:
    """Start all jobs that `heft` starts in a slot, in its order."""
    while _start_best(_HEFT, forecast, state, knowledge):
        pass


@inner
def _window(
    queue: QueueArrays, state: QueueState, cluster: int, maximum: int, chosen: NDArray[np.int64]
) -> int:
    count = 0
    for place in range(state.counts[WAITING]):
        job = state.waiting[place]
        if queue.reach[job, cluster]:
            chosen[count] = job
            count += 1
            if count == maximum:
                break
    return count


@inner
def _start_one(
    rule: int,
    queue: QueueArrays,
    state: QueueState,
    knowledge: Knowledge,
    cluster: int,
    chosen: NDArray[np.int64],
) -> bool:
    count = _window(queue, state, cluster, knowledge.window, chosen)
    if count == 0:
        return False
    free_c, free_g = state.free[cluster, 0], state.free[cluster, 1]
    if rule == _RANDOM or rule == _MIN:
        job = chosen[np.random.randint(count)]  # noqa: NPY002
        if not fits(queue, state, job, cluster):
            return False
        c, g = queue.least[queue.kind[job], 0], queue.least[queue.kind[job], 1]
        if rule == _RANDOM:
            c += np.random.randint(free_c - c + 1)  # noqa: NPY002
            g += np.random.randint(free_g - g + 1)  # noqa: NPY002
        start(state, job, cluster, c, g)
        return True
    sharing = count
    for place in range(state.counts[RUNNING]):
        sharing += state.cluster[state.running[place]] == cluster
    for place in range(count):
        job = chosen[place]
        if not fits(queue, state, job, cluster):
            continue
        kind = queue.kind[job]
        if rule == _EQUAL:
            c = min(free_c, max(queue.least[kind, 0], queue.room[cluster, 0] // sharing))
            g = min(free_g, max(queue.least[kind, 1], queue.room[cluster, 1] // sharing))
        else:
            if free_c < min(knowledge.floor[kind, 0], queue.room[cluster, 0]):
                continue
            if free_g < min(knowledge.floor[kind, 1], queue.room[cluster, 1]):
                continue
            c = min(free_c, max(queue.least[kind, 0], knowledge.due[kind, 0]))
            g = min(free_g, max(queue.least[kind, 1], knowledge.due[kind, 1]))
        start(state, job, cluster, c, g)
        return True
    return False


@inner
def _hand_out(
    queue: QueueArrays,
    state: QueueState,
    knowledge: Knowledge,
    cluster: int,
    priced: bool,
    wanted: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    """Start all of the window that fit with the least, with what is free given to them unit by unit."""
    seen = _window(queue, state, cluster, knowledge.window, chosen)
    free_c, free_g = state.free[cluster, 0], state.free[cluster, 1]
    count, free_c, free_g = _least_first(queue, cluster, free_c, free_g, chosen, seen, wanted)
    price = _price(queue, state, cluster) if priced else 0.0
    _give_units(queue, state, knowledge, free_c, free_g, chosen, count, wanted, price)
    for place in range(count):
        start(state, chosen[place], cluster, wanted[chosen[place], 1], wanted[chosen[place], 2])


@inner
def _least_first(
    queue: QueueArrays, cluster: int, free_c: int, free_g: int, chosen: NDArray[np.int64], seen: int,
    wanted: NDArray[np.int64],
) -> tuple[int, int, int]:  # fmt: skip
    """Want the least for each in turn that fits, and move those to the front; how many they are, and what is left."""
    count = 0
    for place in range(seen):
        job = chosen[place]
        c, g = queue.least[queue.kind[job], 0], queue.least[queue.kind[job], 1]
        if c <= free_c and g <= free_g:
            wanted[job, 0], wanted[job, 1], wanted[job, 2] = cluster, c, g
            free_c -= c
            free_g -= g
            chosen[count] = job
            count += 1
    return count, free_c, free_g


@inner
def _give_units(
    queue: QueueArrays, state: QueueState, knowledge: Knowledge, free_c: int, free_g: int, chosen: NDArray[np.int64],
    count: int, wanted: NDArray[np.int64], price: float,
) -> tuple[int, int]:  # fmt: skip
    """Give what is free, each time the step that saves most slots a unit, if above the price."""
    while True:
        most, who, cpus, gpus = price, -1, 0, 0
        for place in range(count):
            job = chosen[place]
            kind = queue.kind[job]
            if queue.progress[kind, wanted[job, 1], wanted[job, 2]] == knowledge.top[kind]:
                continue
            worth, c, g = _best_step(
                queue, job, wanted[job, 1], wanted[job, 2], state.done[job], free_c, free_g
            )
            if worth > most:
                most, who, cpus, gpus = worth, job, c, g
        if who < 0:
            return free_c, free_g
        free_c -= cpus
        free_g -= gpus
        wanted[who, 1] += cpus
        wanted[who, 2] += gpus


@inner
def _best_step(
    queue: QueueArrays, job: int, c: int, g: int, done: float, free_c: int, free_g: int
) -> tuple[float, int, int]:
    """More processors, accelerators or as many of both that save most slots a unit, and how many."""
    now = slots_left(queue, job, c, g, done)
    best, cpus, gpus = 0.0, 0, 0
    for way in range(3):
        more_c, more_g = way != 0, way != 1
        most = min(free_c, free_g) if way == 2 else free_c if more_c else free_g
        for step in range(1, most + 1):
            saved = now - slots_left(queue, job, c + step * more_c, g + step * more_g, done)
            worth = saved / (step * (more_c + more_g))
            if worth > best:
                best, cpus, gpus = worth, step * more_c, step * more_g
    return best, cpus, gpus


@inner
def _price(queue: QueueArrays, state: QueueState, cluster: int) -> float:
    """Mean of what the last accelerator is worth to those that run, in slots."""
    total, count = 0.0, 0
    for place in range(state.counts[RUNNING]):
        job = state.running[place]
        c, g = state.held[job, 0], state.held[job, 1]
        if state.cluster[job] == cluster and g > queue.least[queue.kind[job], 1]:
            less = slots_left(queue, job, c, g - 1, state.done[job])
            total += less - slots_left(queue, job, c, g, state.done[job])
            count += 1
    return total / count if count else 0.0


@inner
def _start_best(rule: int, queue: QueueArrays, state: QueueState, knowledge: Knowledge) -> bool:
    """Start the job that comes first, where it is quickest; whether there was one."""
    first, who, where, cpus, gpus = 0.0, -1, -1, 0, 0
    for place in range(state.counts[WAITING]):
        job = state.waiting[place]
        kind = queue.kind[job]
        end, cluster, c, g = STEADY, -1, 0, 0
        for one in range(len(queue.room)):
            if fits(queue, state, job, one):
                i, j = _quickest(knowledge, kind, state.free[one, 0], state.free[one, 1])
                slots = _slots(queue, knowledge, job, i, j)
                if slots < end or (slots == end and state.free[one, 1] > state.free[cluster, 1]):
                    end, cluster, c, g = slots, one, i, j
        if cluster < 0:
            continue
        if rule == _HEFT and _later_is_earlier(queue, state, knowledge, job, end):
            continue
        key = (
            float(end)
            if rule == _SJF
            else -float(_slots(queue, knowledge, job, queue.least[kind, 0], queue.least[kind, 1]))
        )
        if who < 0 or key < first:
            first, who, where, cpus, gpus = key, job, cluster, c, g
    if who < 0:
        return False
    start(state, who, where, cpus, gpus)
    return True


@inner
def _slots(queue: QueueArrays, knowledge: Knowledge, job: int, cpus: int, gpus: int) -> int:
    """Slots of a whole job with so much, at its pace as far as that is known."""
    slots = knowledge.slots[queue.kind[job], cpus, gpus]
    return slots if queue.pace[job] == 1.0 or slots == STEADY else int(np.ceil(slots / queue.pace[job]))


@inner
def _quickest(knowledge: Knowledge, kind: int, free_c: int, free_g: int) -> tuple[int, int]:
    """The least amount that is as quick as any within what is free."""
    c, g = min(free_c, knowledge.best.shape[1] - 1), min(free_g, knowledge.best.shape[2] - 1)
    return knowledge.best[kind, c, g, 0], knowledge.best[kind, c, g, 1]


@inner
def _later_is_earlier(
    queue: QueueArrays, state: QueueState, knowledge: Knowledge, job: int, end: int
) -> bool:
    """Whether a job would be done before `end` slots if it waited for one that runs to end."""
    kind = queue.kind[job]
    if (
        1 + _slots(queue, knowledge, job, knowledge.best[kind, -1, -1, 0], knowledge.best[kind, -1, -1, 1])
        >= end
    ):
        return False
    for place in range(state.counts[RUNNING]):
        other = state.running[place]
        cluster = state.cluster[other]
        if queue.reach[job, cluster]:
            wait = slots_left(queue, other, state.held[other, 0], state.held[other, 1], state.done[other])
            if wait >= end:
                continue
            c = state.free[cluster, 0] + state.held[other, 0]
            i, j = _quickest(knowledge, kind, c, state.free[cluster, 1] + state.held[other, 1])
            if wait + _slots(queue, knowledge, job, i, j) < end:
                return True
    return False


@inner
def _reallot(
    rule: int,
    queue: QueueArrays,
    state: QueueState,
    knowledge: Knowledge,
    wanted: NDArray[np.int64],
    chosen: NDArray[np.int64],
    keys: NDArray[np.float64],
) -> None:
    """Decide anew what each job has, then stop, shrink, grow and start in this order."""
    clusters = len(queue.room)
    for place in range(state.counts[RUNNING]):
        wanted[state.running[place], 0] = -1
    for place in range(state.counts[WAITING]):
        wanted[state.waiting[place], 0] = -1
    for cluster in range(clusters):
        count = 0
        for place in range(state.counts[RUNNING]):
            job = state.running[place]
            if state.cluster[job] == cluster:
                chosen[count] = job
                count += 1
        seen = 0
        for place in range(state.counts[WAITING]):
            job = state.waiting[place]
            if queue.reach[job, cluster] and wanted[job, 0] < 0 and seen < knowledge.window:
                chosen[count] = job
                count += 1
                seen += 1
        _sort(rule, queue, state, knowledge, cluster, chosen, keys, count)
        _divide(rule, queue, state, knowledge, cluster, chosen, count, wanted)
    for shrinking in range(2):
        place = 0
        while place < state.counts[RUNNING]:
            job = state.running[place]
            cluster, c, g = wanted[job, 0], wanted[job, 1], wanted[job, 2]
            if cluster < 0:
                stop(state, job)
                continue
            grows = c > state.held[job, 0] or g > state.held[job, 1]
            if shrinking == 0:
                allot(state, job, min(c, state.held[job, 0]), min(g, state.held[job, 1]))
            elif grows:
                allot(state, job, c, g)
            place += 1
    place = 0
    while place < state.counts[WAITING]:
        job = state.waiting[place]
        if wanted[job, 0] >= 0:
            start(state, job, wanted[job, 0], wanted[job, 1], wanted[job, 2])
        else:
            place += 1


@inner
def _sort(
    rule: int, queue: QueueArrays, state: QueueState, knowledge: Knowledge, cluster: int, chosen: NDArray[np.int64],
    keys: NDArray[np.float64], count: int,
) -> None:  # fmt: skip
    """Order jobs by who comes first under a rule; ties by arrival. Shell's sort, as clusters may run thousands."""
    for place in range(count):
        keys[place] = _key(rule, queue, state, knowledge, cluster, chosen[place])
    gap = count // 2
    while gap > 0:
        for first in range(gap, count):
            place, job, key = first, chosen[first], keys[first]
            while place >= gap:
                before, other = chosen[place - gap], keys[place - gap]
                if other < key or (other == key and before < job):
                    break
                chosen[place], keys[place] = before, other
                place -= gap
            chosen[place], keys[place] = job, key
        gap //= 2


@inner
def _key(
    rule: int, queue: QueueArrays, state: QueueState, knowledge: Knowledge, cluster: int, job: int
) -> float:
    kind = queue.kind[job]
    if _is_overdue(queue, state, knowledge, job):
        return float(job) - STEADY
    if rule == _TIRESIAS:
        # Two levels: jobs that have had as much as one of their kind takes in all are put behind the others.
        c, g = _clipped(queue, cluster, knowledge.due[kind, 0], knowledge.due[kind, 1], kind)
        return 1.0 if state.served[job] > (g if g > 0 else c) * knowledge.slots[kind, c, g] else 0.0
    c, g = _quickest(knowledge, kind, queue.room[cluster, 0], queue.room[cluster, 1])
    if rule == _SRPT:
        return float(slots_left(queue, job, c, g, state.done[job]))
    if rule == _GAVEL:
        return state.done[job] * knowledge.slots[kind, c, g] / (state.counts[SLOT] - queue.arrival[job] + 1)
    return 0.0


@inner
def _clipped(queue: QueueArrays, cluster: int, c: int, g: int, kind: int) -> tuple[int, int]:
    """Due amount of a kind within the capacity of a cluster, and the least that it starts with."""
    return (
        max(queue.least[kind, 0], min(c, queue.room[cluster, 0])),
        max(queue.least[kind, 1], min(g, queue.room[cluster, 1])),
    )


@inner
def _divide(
    rule: int,
    queue: QueueArrays,
    state: QueueState,
    knowledge: Knowledge,
    cluster: int,
    chosen: NDArray[np.int64],
    count: int,
    wanted: NDArray[np.int64],
) -> None:
    """Want amounts for jobs in their order, out of all that a cluster has."""
    free_c, free_g = queue.room[cluster, 0], queue.room[cluster, 1]
    if rule == _OPTIMUS or rule == _GAVEL:
        count, free_c, free_g = _least_first(queue, cluster, free_c, free_g, chosen, count, wanted)
        together = max(count, 1) if rule == _OPTIMUS else 1
        for place in range(0, count, together):
            free_c, free_g = _give_units(
                queue,
                state,
                knowledge,
                free_c,
                free_g,
                chosen[place : place + together],
                together,
                wanted,
                0.0,
            )
        return
    for place in range(count):
        job = chosen[place]
        kind = queue.kind[job]
        least_c, least_g = queue.least[kind, 0], queue.least[kind, 1]
        if least_c > free_c or least_g > free_g:
            continue
        if rule == _TIRESIAS:
            c, g = (
                min(free_c, max(least_c, knowledge.due[kind, 0])),
                min(free_g, max(least_g, knowledge.due[kind, 1])),
            )
        else:
            c, g = _quickest(knowledge, kind, free_c, free_g)
        wanted[job, 0], wanted[job, 1], wanted[job, 2] = cluster, c, g
        free_c -= c
        free_g -= g
