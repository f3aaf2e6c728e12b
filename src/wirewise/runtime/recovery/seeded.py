"""Random numbers of a batch as a function of its position, in this process or in a loader worker.

Augmentation in a dataset or in its `collate_fn` uses the generators of torch, numpy and Python, or from one that the
dataset holds. All of them are seeded before each batch, so that a batch that is loaded again, by another process or
another worker, is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

__all__ = ["BatchPlace", "SeededBatches", "StartWorker", "seed_all"]

_MIX = 0x9E3779B97F4A7C15
_DEPTH, _MOST = 4, 64
"""Depth of objects in which generators are looked for, and entries of a container: samples in long lists hold none."""


class BatchPlace(NamedTuple):
    """Position of a batch, and its samples."""

    step: int
    share: int
    indices: Sequence[int]


def seed_all(seed: int, step: int, share: int, stream: int = 0) -> None:
    """Seed the random generators of torch, numpy and Python for one share of a step.

    Dropout therefore depends neither on earlier random numbers nor on the rank that computes the share, and no
    generator state is lost with a process.

    Args:
        seed: Seed of the training.
        step: Step, counted from 0.
        share: Index of the share of the global batch.
        stream: 0 for compute, 1 for data.
    """
    mixed = _mixed(seed, step, share, stream)
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(mixed)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)  # noqa: NPY002


class SeededBatches(Dataset):
    """Dataset of batches: loads the samples of a position, seeded by it, and collates them.

    Args:
        dataset: Dataset of the samples.
        collate: Function that makes a batch of samples.
        seed: Seed of the training.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self.dataset, self._collate, self._seed = dataset, collate, seed

    def __getitem__(self, place: BatchPlace) -> Any:
        step, share, indices = place
        seed_all(self._seed, step, share, stream=1)
        mixed = _mixed(self._seed, step, share, 1)
        for number, generator in enumerate(_generators((self.dataset, self._collate))):
            _seed_one(generator, (mixed + number * _MIX) % 2**63)
        many = getattr(self.dataset, "__getitems__", None)
        samples = many(list(indices)) if many else [self.dataset[index] for index in indices]
        return self._collate(samples)


class StartWorker:
    """Worker initialisation that makes `get_worker_info().dataset` the user's dataset.

    Args:
        user: The loader's `worker_init_fn`; None if there is none.
    """

    def __init__(self, user: Callable[[int], Any] | None) -> None:
        self._user = user

    def __call__(self, number: int) -> None:
        info: Any = get_worker_info()
        # torch lets nobody assign to it once it is made.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._user is not None:
            self._user(number)


def _mixed(seed: int, step: int, share: int, stream: int) -> int:
    mixed = ((seed * 1_000_003 + step) * 1_000_003 + share) + stream * 0x51ED270B0A1F39C1
    return (mixed * _MIX) % 2**64 >> 1


def _generators(root: Any) -> Iterator[Any]:
    """Generators of random numbers that an object holds, in a fixed order."""
    seen: set[int] = set()

    def walk(one: Any, depth: int) -> Iterator[Any]:
        if id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
            yield one
        elif depth:
            for part in _parts(one):
                yield from walk(part, depth - 1)

    return walk(root, _DEPTH)


def _parts(one: Any) -> Sequence[Any]:
    if isinstance(one, torch.Tensor | np.ndarray | str | bytes | int | float | type) or one is None:
        return ()
    if isinstance(one, list | tuple | set | frozenset):
        return list(one) if len(one) <= _MOST else ()
    if isinstance(one, dict):
        return list(one.values()) if len(one) <= _MOST else ()
    return list(vars(one).values()) if hasattr(one, "__dict__") else ()


def _seed_one(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    else:
        generator.seed(seed)
