"""Ends of jobs within their last slot."""

from __future__ import annotations

import pytest

from wirewise.planners import PLANNERS
from wirewise.sim.jobs.ends import job_ends
from wirewise.trace.queues import EdgeCluster, JobKind, JobQueue, QueuedJob

KIND = JobKind(progress=((0.0,), (0.4,)))


def test_a_job_ends_where_its_last_slot_is_used_up():
    queue = JobQueue(
        queue=(QueuedJob(name="a", kind="k", arrival=1), QueuedJob(name="b", kind="k", arrival=1)),
        kinds={"k": KIND},
        clusters=(EdgeCluster(name="c", cpus=1, gpus=0),),
        slot_s=2.0,
    )
    ends = job_ends(PLANNERS["jobs"]["heft"](queue), queue)
    # Two and a half slots each, the second from the slot after that in which the first ends.
    assert ends == pytest.approx({"a": 2 * 3.5, "b": 2 * 6.5})
