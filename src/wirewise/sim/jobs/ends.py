"""When jobs end within their last slot, which plans count as a whole one."""

from __future__ import annotations

from wirewise.plans.jobs import JobPlan
from wirewise.sim.jobs.engine import DONE, gain
from wirewise.trace.queues import JobQueue

__all__ = ["job_ends"]


def job_ends(plan: JobPlan, queue: JobQueue) -> dict[str, float]:
    """Seconds from the first slot to the end of each job, the last slot by the share of it that the job needs.

    Args:
        plan: Plan for the queue, as `predict` accepts it.
        queue: Jobs and clusters.
    """
    arrays = queue.arrays()
    found = {}
    for number, job in enumerate(queue.queue):
        done, end = 0.0, 0.0
        for one in plan.of(job.name):
            for slot in range(one.start, one.end):
                changed = slot == one.start and done > 0.0
                step = gain(arrays, number, one.cpus, one.gpus, done) * (plan.kept if changed else 1.0)
                if done < 1.0 - DONE and step > 0.0:
                    end = slot + min(1.0, (1.0 - done) / step)
                done += step
        found[job.name] = end * queue.slot_s
    return found
