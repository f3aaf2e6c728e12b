"""How many rows of other machines batches need, counted over sampled batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.sampling import NeighborSampler

__all__ = ["access_counts", "missed"]


def access_counts(
    sampler: NeighborSampler, batches: Iterable[NDArray[np.int64]], *, epoch: int = 0, first: int = 0
) -> NDArray[np.int64]:
    """Batches that need each node beside its seeds, [N].

    Args:
        sampler: Draws the neighbourhoods.
        batches: Seeds of each; empty ones need nothing.
        epoch: Epoch of the draws.
        first: Number of the first batch.
    """
    counts = np.zeros(sampler.num_nodes, np.int64)
    for number, seeds in enumerate(batches):
        if len(seeds):
            batch = sampler.sample(seeds, epoch=epoch, batch=first + number)
            counts[batch.n_id[batch.num_seeds :]] += 1
    return counts


def missed(counts: NDArray[np.int64], own: NDArray[np.bool_], cached: NDArray[Any]) -> int:
    """Rows that a machine fetches over all counted batches.

    Args:
        counts: Counts of its batches, [N].
        own: Whether it owns a node, [N].
        cached: Ids of the remote nodes that it keeps.
    """
    return int(counts[~own].sum() - counts[cached].sum())
