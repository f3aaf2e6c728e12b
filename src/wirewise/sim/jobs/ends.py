"""End times of jobs within their last slot, which plans count as a whole one."""

from __future__ import annotations

from wirewise.plans.jobs import JobPlan
from wirewise.sim.jobs.engine import run_slots
from wirewise.trace.queues import JobQueue

__all__ = ["job_ends"]


def job_ends(plan: JobPlan, queue: JobQueue) -> dict[str, float]:
    """Seconds from the first slot to the end of each job, with the last slot counted by the fraction used.

    Args:
        plan: Plan for the queue, as `predict` accepts it.
        queue: Jobs and clusters.
    """
    arrays, found = queue.arrays(), {job.name: 0.0 for job in queue.queue}
    numbers = {name: number for number, name in enumerate(found)}
    done = [0.0] * len(found)
    for one in plan.allotments:
        job = numbers[one.job]
        first = plan.kept if done[job] > 0.0 else 1.0
        done[job], taken, share = run_slots(
            arrays, job, one.cpus, one.gpus, one.end - one.start, done[job], first
        )
        if share > 0.0:
            found[one.job] = (one.start + taken - 1 + share) * queue.slot_s
    return found
