"""Lowering of job plans to a queue."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirewise.errors import PlanError
from wirewise.plans.jobs import JobAllotment, JobPlan
from wirewise.sim.jobs.engine import DONE, run_slots
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.queues import JobQueue, QueueArrays

__all__ = ["lower_jobs"]


def lower_jobs(plan: JobPlan, job: Any, links: Any) -> Prediction:
    """Simulate the jobs with the plan's allotments; see `predict`.

    Raises:
        PlanError: The plan is for another queue, exceeds the capacity of a cluster, or its jobs finish at other
            times.
    """
    queue = expect("job", job, JobQueue, plan)
    if links is not None:
        raise PlanError(
            f"got links beside a {plan.family} plan, whose jobs run each within a cluster; leave them out"
        )
    same_ranks(plan, len(queue.clusters), "the queue has")
    names = tuple(cluster.name for cluster in queue.clusters)
    if plan.clusters != names or plan.slot_s != queue.slot_s:
        raise PlanError(
            f"clusters are {list(plan.clusters)} and slots of {plan.slot_s} s - at `$.clusters`, the queue has "
            f"{list(names)} and {queue.slot_s} s; make the plan again for this queue"
        )
    _check_room(plan, queue)
    ends = _ends(plan, queue)
    taken = [(ends[one.name] - one.arrival) * queue.slot_s for one in queue.queue]
    if not np.isclose(np.mean(taken), plan.mean_completion_s, rtol=1e-9):
        raise PlanError(
            f"mean_completion_s is {plan.mean_completion_s} - at `$.mean_completion_s`, these allotments give "
            f"{np.mean(taken)}; make the plan again"
        )
    slot_s = queue.slot_s
    spans = tuple(
        Span(
            rank=one.cluster,
            phase="job",
            exchange=one.job,
            start_s=one.start * slot_s,
            end_s=one.end * slot_s,
        )
        for one in plan.allotments
    )
    timeline = Timeline(spans=spans, world_size=plan.world_size)
    return prediction_of(
        plan, f"queue of {len(queue.queue)} jobs", timeline, max(ends.values()) * queue.slot_s
    )


def _check_room(plan: JobPlan, queue: JobQueue) -> None:
    """Raise if a cluster gives more than it has in a slot."""
    changes: list[list[tuple[int, int, int]]] = [[] for _ in queue.clusters]
    for one in plan.allotments:
        changes[one.cluster] += [(one.start, one.cpus, one.gpus), (one.end, -one.cpus, -one.gpus)]
    for number, (cluster, moments) in enumerate(zip(queue.clusters, changes, strict=True)):
        if not moments:
            continue
        slots, cpus, gpus = np.array(sorted(moments)).T
        last = np.append(slots[1:] != slots[:-1], True)
        for what, amounts, room in (("cpus", cpus, cluster.cpus), ("gpus", gpus, cluster.gpus)):
            given = np.cumsum(amounts)[last]
            if given.max() > room:
                slot = slots[last][given.argmax()]
                raise PlanError(
                    f"cluster {number} ({cluster.name!r}) gives {given.max()} {what} in slot {slot} - at "
                    f"`$.allotments`; it has {room}"
                )


def _ends(plan: JobPlan, queue: JobQueue) -> dict[str, int]:
    """Slot after the last one of each job."""
    arrays, numbers = queue.arrays(), {one.name: number for number, one in enumerate(queue.queue)}
    shares: dict[str, list[tuple[int, JobAllotment]]] = {name: [] for name in numbers}
    for place, one in enumerate(plan.allotments):
        if one.job not in shares:
            raise PlanError(
                f"job {one.job!r} - at `$.allotments[{place}].job` is not in the queue; make the plan again"
            )
        shares[one.job].append((place, one))
    return {name: _end(plan, arrays, numbers[name], name, own) for name, own in shares.items()}


def _end(plan: JobPlan, arrays: QueueArrays, job: int, name: str, own: list[tuple[int, JobAllotment]]) -> int:
    if not own:
        raise PlanError(
            f"job {name!r} has no allotment - at `$.allotments`; make the plan again for this queue"
        )
    least, done = arrays.least[arrays.kind[job]], 0.0
    for place, one in own:
        where = f"job {name!r} - at `$.allotments[{place}]`"
        if one.start < arrays.arrival[job]:
            raise PlanError(f"{where} starts in slot {one.start}; it arrives in slot {arrays.arrival[job]}")
        if not arrays.reach[job, one.cluster]:
            raise PlanError(f"{where} runs on cluster {one.cluster}; it may not")
        if one.cpus < least[0] or one.gpus < least[1]:
            raise PlanError(
                f"{where} has {one.cpus} cpus and {one.gpus} gpus; it starts with {least[0]} and {least[1]}"
            )
        slots, first = one.end - one.start, plan.kept if done > 0.0 else 1.0
        done, taken, _ = run_slots(arrays, job, one.cpus, one.gpus, slots, done, first)
        if taken < slots:
            raise PlanError(f"{where} lasts to slot {one.end}; the job is done in slot {one.start + taken}")
    if done < 1.0 - DONE:
        raise PlanError(
            f"job {name!r} has {done:.1%} of its progress at the end of its last allotment - at "
            f"`$.allotments[{own[-1][0]}]`; give it more time"
        )
    return own[-1][1].end
