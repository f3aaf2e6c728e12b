"""How many rows of other machines batches need, counted over sampled batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.sampling import NeighborSampler
from wirewise.rng import stream_key

__all__ = ["access_counts", "missed", "seed_batches"]


def seed_batches(
    train: NDArray[Any], batch_size: int, *, epoch: int = 0, seed: int = 0, batches: int | None = None
) -> list[NDArray[np.int64]]:
    """The training nodes in a random order that depends on (seed, epoch) only, cut into batches.

    Args:
        train: Training nodes of a machine, [T].
        batch_size: Of all batches but the last.
        epoch: Orders differ between epochs.
        seed: Of the order.
        batches: Cut into exactly so many, nearly equal; some are empty where there are fewer nodes.
    """
    order = np.random.default_rng(stream_key(seed, epoch)).permutation(np.asarray(train, dtype=np.int64))
    if batches is not None:
        return np.array_split(order, batches)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def access_counts(
    sampler: NeighborSampler, batches: Iterable[NDArray[np.int64]], *, epoch: int = 0, first: int = 0
) -> NDArray[np.int64]:
    """Batches that need each node beside its seeds, [N].

    Args:
        sampler: Draws the neighbourhoods.
        batches: Seeds of each; empty ones need nothing.
        epoch: Of the draws.
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
        counts: Of its batches, [N].
        own: Whether it owns a node, [N].
        cached: Ids of the remote nodes that it keeps.
    """
    return int(counts[~own].sum() - counts[cached].sum())
