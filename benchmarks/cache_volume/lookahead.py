"""Caches that change while training: batches are known in advance, because their draws are.

The least that any cache of so many rows fetches is that of one that knows all batches to come and keeps what is needed
soonest (Belady, IBM Systems Journal 5(2), 1966), with rows that need not enter it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.sampling import seed_batches
from wirewise.planners.cache.policies import CacheProblem

Rows = Sequence[NDArray[np.int64]]
_NEVER = np.iinfo(np.int64).max


def remote_rows(problem: CacheProblem, machine: int, epochs: Sequence[int]) -> list[NDArray[np.int64]]:
    """Remote nodes that each batch of a machine needs, in order, [batches][rows]."""
    sampler, own, found = problem.sampler(), problem.owner == machine, []
    for epoch in epochs:
        batches = seed_batches(problem.train[machine], problem.batch_size, epoch=epoch, seed=sampler.seed)
        for number, seeds in enumerate(batches):
            batch = sampler.sample(seeds, epoch=epoch, batch=machine * len(batches) + number)
            found.append(batch.n_id[~own[batch.n_id]])
    return found


def fetched_rows(
    rows: Rows, num_nodes: int, *, static: NDArray[np.int64], room: int = 0, window: int | None = None
) -> int:
    """Rows fetched with some kept always, and space for others that are kept while batches ahead need them.

    Args:
        rows: Remote nodes of each batch.
        num_nodes: Number of nodes, N.
        static: Nodes that are kept always.
        room: Rows beside them.
        window: Batches ahead that are known; none: all.
    """
    always = np.zeros(num_nodes, dtype=bool)
    always[static] = True
    left = [batch[~always[batch]] for batch in rows]
    ahead = _next_use(left, num_nodes)
    held = np.empty(0, np.int64)
    due = np.empty(0, np.int64)
    total = 0
    for step, batch in enumerate(left):
        total += len(np.setdiff1d(batch, held, assume_unique=True))
        kept = ~np.isin(held, batch, assume_unique=True)
        held, due = np.concatenate([held[kept], batch]), np.concatenate([due[kept], ahead[step]])
        known = due <= (step + window if window is not None else _NEVER - 1)
        held, due = held[known], due[known]
        if len(held) > room:
            soonest = np.argpartition(due, room)[:room] if room else np.empty(0, np.int64)
            held, due = held[soonest], due[soonest]
    return total


def _next_use(rows: Rows, num_nodes: int) -> list[NDArray[np.int64]]:
    """The next batch that needs each row of each batch."""
    following = np.full(num_nodes, _NEVER)
    found = []
    for step in range(len(rows) - 1, -1, -1):
        found.append(following[rows[step]])
        following[rows[step]] = step
    return found[::-1]
