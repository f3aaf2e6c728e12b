"""Critical path and slack of a run, through the graph and the order of ops on their resources."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import outer
from wirewise.sim.engine import Ops, Run
from wirewise.sim.sharing import NONE

__all__ = ["critical_path", "slack"]


@outer
def slack(ops: Ops, out: Run) -> NDArray[np.float64]:
    """Time that each op could be delayed without a later overall end, in seconds, with other durations unchanged.

    Follows the graph and the order of ops on each slot; [n], 0 on a critical path.
    """
    n = len(ops.duration)
    latest = np.full(n, np.nanmax(out.end)) if n else np.zeros(0)
    for place in range(n - 1, -1, -1):
        op = out.order[place]
        for position in range(ops.indptr[op], ops.indptr[op + 1]):
            follower = ops.successors[position]
            latest[op] = min(latest[op], latest[follower] - (out.end[follower] - out.start[follower]))
        earlier = out.earlier[op]
        if earlier != NONE:
            start = latest[op] - (out.end[op] - out.start[op])
            latest[earlier] = min(latest[earlier], start - ops.gap[earlier])
    return latest - out.end


def critical_path(out: Run) -> NDArray[np.int64]:
    """Ops that determine the end, first to last: the start of each was enabled by the end of the previous one."""
    if not len(out.end):
        return np.zeros(0, dtype=np.int64)
    path = [int(np.nanargmax(out.end))]
    while (cause := int(out.cause[path[-1]])) != NONE:
        path.append(cause)
    return np.array(path[::-1], dtype=np.int64)
