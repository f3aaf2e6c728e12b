"""Which training nodes make up each batch of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.rng import stream_key

__all__ = ["seed_batches"]


def seed_batches(
    train: NDArray[Any], batch_size: int, *, epoch: int = 0, seed: int = 0, batches: int | None = None
) -> list[NDArray[np.int64]]:
    """The training nodes in a random order that depends on (seed, epoch) only, cut into batches.

    Args:
        train: Training nodes of a machine, [T].
        batch_size: Batch size of all batches but the last.
        epoch: Orders differ between epochs.
        seed: Seed of the order.
        batches: Cut into exactly so many, nearly equal; some are empty where there are fewer nodes.
    """
    order = np.random.default_rng(stream_key(seed, epoch)).permutation(np.asarray(train, dtype=np.int64))
    if batches is not None:
        return np.array_split(order, batches)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
