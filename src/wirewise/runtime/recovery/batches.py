"""Batches by their position, so that any rank can draw any batch again: a function of seed, step and share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from wirewise.errors import InputError

__all__ = ["Drawn", "TrainingBatches", "seed_all", "shares_of"]

Drawn = Callable[[int, int], Any]
"""Batch of a step, counted from 0, for a share of the global batch."""

_MIX = 0x9E3779B97F4A7C15


def shares_of(place: int, processes: int, shares: int) -> range:
    """Shares of the global batch that a process computes, one behind the other.

    Args:
        place: Number of the process among those that train.
        processes: Number of processes that train.
        shares: Number of shares, that of the ranks at the start.
    """
    return range(place * shares // processes, (place + 1) * shares // processes)


def seed_all(seed: int, step: int, share: int) -> None:
    """Seed the random generators of torch, numpy and Python for one share of a step.

    So dropout depends neither on what was drawn before nor on the rank that computes the share, and no state of a
    generator is lost with a process.
    """
    mixed = (seed * 1_000_003 + step) * 1_000_003 + share
    mixed = (mixed * _MIX) % 2**64 >> 1
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(mixed)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)  # noqa: NPY002


class TrainingBatches:
    """The batches of a training.

    Args:
        loader: A `DataLoader` over a map-style dataset, of which each share gets batches of its batch size, in the
            order of `DistributedSampler` with as many replicas as shares; or a function of step and share.
        shares: Shares of each global batch.
        seed: Seed of the order, unless the loader's sampler has one.

    Raises:
        InputError: A loader whose batches cannot be drawn by position; the message names what is in the way.
    """

    def __init__(self, loader: DataLoader | Drawn, shares: int, seed: int) -> None:
        self._shares, self._reader = shares, None
        self._iterator: Iterator[Any] | None = None
        self._next: tuple[int, int] | None = None
        self._own, self._epoch = range(0), -1
        if not isinstance(loader, DataLoader):
            if not callable(loader):
                raise InputError(
                    f"got a loader of type {type(loader).__name__}; expected a torch DataLoader, or a function of step "
                    "and share, so that a batch can be drawn again after a failure"
                )
            self._draw: Drawn | None = loader
            self.steps_per_epoch = 0
            return
        self._draw, self._loader = None, loader
        self._shuffle, self._seed = _order_of(loader, seed)
        self._size = loader.batch_size or 0
        count = len(loader.dataset)  # type: ignore[arg-type]
        self._each = count // shares if loader.drop_last else -(-count // shares)
        self.steps_per_epoch = self._each // self._size if loader.drop_last else -(-self._each // self._size)
        if not self.steps_per_epoch:
            raise InputError(
                f"the dataset has {count} items, fewer than {shares} shares of {self._size}; expected one batch "
                "for each share at least"
            )

    def draw(self, step: int, share: int, own: range) -> Any:
        """The batch of a share in a step.

        Args:
            step: Step, counted from 0 over all epochs.
            share: One of the own shares.
            own: Shares that this process draws, in their order; read ahead by the loader's workers.
        """
        if self._draw is not None:
            return self._draw(step, share)
        epoch = step // self.steps_per_epoch
        if self._iterator is None or self._next != (step, share) or self._own != own or self._epoch != epoch:
            self._own, self._epoch = own, epoch
            self._iterator = self._from(step, share, own)
        batch = next(self._iterator)
        place = own.index(share) + 1
        self._next = (step, own[place]) if place < len(own) else (step + 1, own[0])
        return batch

    def _from(self, step: int, share: int, own: range) -> Iterator[Any]:
        """Batches of an epoch from a position on."""
        epoch, first = divmod(step, self.steps_per_epoch)
        order = self._indices(epoch)
        wanted = [
            order[one :: self._shares][number * self._size : (number + 1) * self._size]
            for number in range(first, self.steps_per_epoch)
            for one in own
            if (number, one) >= (first, share)
        ]
        old = self._loader
        again = DataLoader(
            old.dataset,
            batch_sampler=wanted,  # type: ignore[arg-type]
            num_workers=old.num_workers,
            collate_fn=old.collate_fn,
            pin_memory=old.pin_memory,
            timeout=old.timeout,
            worker_init_fn=old.worker_init_fn,
            multiprocessing_context=old.multiprocessing_context,
            prefetch_factor=old.prefetch_factor,
            generator=torch.Generator().manual_seed(self._seed + step),
        )
        return iter(again)

    def _indices(self, epoch: int) -> Sequence[int]:
        """Order of an epoch, as `DistributedSampler` has it."""
        count = len(self._loader.dataset)  # type: ignore[arg-type]
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            order = torch.randperm(count, generator=generator).tolist()
        else:
            order = list(range(count))
        whole = self._each * self._shares
        while len(order) < whole:
            order += order[: whole - len(order)]
        return order[:whole]


def _order_of(loader: DataLoader, seed: int) -> tuple[bool, int]:
    """Whether a loader shuffles, and its seed."""
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        found = sampler.shuffle, sampler.seed
    elif isinstance(sampler, RandomSampler) and not sampler.replacement:
        found = True, seed
    elif isinstance(sampler, SequentialSampler):
        found = False, seed
    else:
        raise InputError(
            f"the loader has the sampler {type(sampler).__name__}; expected shuffle=True or False, DistributedSampler, "
            "or in place of the loader a function of step and share, so that a batch can be drawn again"
        )
    if loader.batch_size is None:
        raise InputError(
            "the loader has a batch_sampler or no batch size; expected batch_size, or in place of the loader a "
            "function of step and share, so that a batch can be drawn again"
        )
    return found
