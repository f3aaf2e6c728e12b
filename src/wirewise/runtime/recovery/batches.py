"""Batches by position, a function of seed, step and share, so that any rank can load any batch again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from wirewise.errors import InputError
from wirewise.runtime.recovery.seeded import BatchPlace, SeededBatches, StartWorker, seed_all

__all__ = ["Drawn", "TrainingBatches", "shares_of"]

Drawn = Callable[[int, int], Any]
"""Function of step, counted from 0, and share that returns the share's batch."""


def shares_of(index: int, processes: int, shares: int) -> range:
    """Consecutive shares of the global batch computed by a process.

    Args:
        index: Index of the process among those that train.
        processes: Number of processes that train.
        shares: Number of shares, equal to the initial number of ranks.
    """
    return range(index * shares // processes, (index + 1) * shares // processes)


class TrainingBatches:
    """Batches of a training.

    Args:
        loader: A `DataLoader` over a map-style dataset, from which each share gets batches of its batch size, in the
            order of `DistributedSampler` with one replica per share; or a function of step and share.
        shares: Number of shares of each global batch.
        seed: Seed of the order, unless the loader's sampler has one.

    Raises:
        InputError: Batches of the loader cannot be addressed by position; the message names the obstacle.
    """

    def __init__(self, loader: DataLoader | Drawn, shares: int, seed: int) -> None:
        self._shares, self._reader = shares, None
        self._iterator: Iterator[Any] | None = None
        self._random_seed = seed
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
        _check_carried_out(loader)
        self._draw, self._loader = None, loader
        self._shuffle, self._seed = _order_of(loader, seed)
        self._size = loader.batch_size or 0
        count = len(loader.dataset)  # type: ignore[arg-type]
        sampler = loader.sampler
        truncated = sampler.drop_last if isinstance(sampler, DistributedSampler) else loader.drop_last
        self._each = count // shares if truncated else -(-count // shares)
        self.steps_per_epoch = self._each // self._size if loader.drop_last else -(-self._each // self._size)
        if not self.steps_per_epoch:
            raise InputError(
                f"the dataset has {count} items, fewer than {shares} shares of {self._size}; expected one batch "
                "for each share at least"
            )

    def draw(self, step: int, share: int, own: range) -> Any:
        """Load the batch of a share in a step.

        Args:
            step: Step, counted from 0 over all epochs.
            share: One of the own shares.
            own: Shares that this process loads, in order; prefetched by the loader's workers.
        """
        if self._draw is not None:
            seed_all(self._random_seed, step, share, stream=1)
            return self._draw(step, share)
        # Workers that persist read ahead over the ends of epochs.
        epoch = 0 if self._loader.persistent_workers else step // self.steps_per_epoch
        if self._iterator is None or self._next != (step, share) or self._own != own or self._epoch != epoch:
            self._own, self._epoch = own, epoch
            self._iterator = self._from(step, share, own)
        batch = next(self._iterator)
        place = own.index(share) + 1
        self._next = (step, own[place]) if place < len(own) else (step + 1, own[0])
        return batch

    def close(self) -> None:
        """Stop the workers of the loader."""
        self._iterator, self._next = None, None

    def _from(self, step: int, share: int, own: range) -> Iterator[Any]:
        """Batches from a position on, to the end of the epoch or, where workers persist, of the training."""
        old = self._loader
        of_workers: dict[str, Any] = {}
        if old.num_workers:
            of_workers = {
                "timeout": old.timeout,
                "worker_init_fn": StartWorker(old.worker_init_fn),
                "multiprocessing_context": old.multiprocessing_context,
                "prefetch_factor": old.prefetch_factor,
                "persistent_workers": old.persistent_workers,
            }
        again = DataLoader(
            SeededBatches(old.dataset, old.collate_fn, self._random_seed),  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Places(self, step, share, own),
            num_workers=old.num_workers,
            collate_fn=_unchanged,
            pin_memory=old.pin_memory,
            # The same from wherever an iterator begins.
            generator=torch.Generator().manual_seed(self._random_seed),
            **of_workers,
        )
        return iter(again)

    def places(self, step: int, share: int, own: range) -> Iterator[BatchPlace]:
        """Step, share and indices of the batches from a position on."""
        epoch, first = divmod(step, self.steps_per_epoch)
        while True:
            order = self._indices(epoch)
            for number in range(first, self.steps_per_epoch):
                for one in own:
                    now = epoch * self.steps_per_epoch + number
                    if (now, one) >= (step, share):
                        indices = order[one :: self._shares][number * self._size : (number + 1) * self._size]
                        yield BatchPlace(now, one, indices)
            epoch, first = epoch + 1, 0
            if not self._loader.persistent_workers:
                return

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


class _Places:
    """Places as a sampler, which a loader iterates over anew."""

    def __init__(self, batches: TrainingBatches, step: int, share: int, own: range) -> None:
        self._from = batches, step, share, own

    def __iter__(self) -> Iterator[BatchPlace]:
        batches, step, share, own = self._from
        return batches.places(step, share, own)


def _unchanged(batch: Any) -> Any:
    return batch


def _check_carried_out(loader: DataLoader) -> None:
    """Raise for settings of a loader that batches by position cannot follow."""
    if isinstance(loader.dataset, IterableDataset):
        raise InputError(
            f"the loader has the IterableDataset {type(loader.dataset).__name__}; expected a map-style dataset, or in "
            "place of the loader a function of step and share, so that a batch can be drawn again"
        )
    for method in ("__iter__", "_get_iterator"):
        if getattr(type(loader), method) is not getattr(DataLoader, method):
            raise InputError(
                f"{type(loader).__name__} has a {method} of its own, which batches by position would pass over; "
                "expected torch's, or in place of the loader a function of step and share"
            )
    if (loader.generator or getattr(loader.sampler, "generator", None)) is not None:
        raise InputError(
            "the loader has a generator, whose state a lost process takes along; expected none: the order and all "
            "random numbers are functions of protect(seed=...)"
        )
    if not getattr(loader, "in_order", True):
        raise InputError("got a loader with in_order=False; expected True, so that each step has one batch")


def _order_of(loader: DataLoader, seed: int) -> tuple[bool, int]:
    """Whether a loader shuffles, and its seed."""
    sampler = loader.sampler
    if type(sampler) is DistributedSampler:
        found = sampler.shuffle, sampler.seed
    elif type(sampler) is RandomSampler and not sampler.replacement and _takes_all(loader):
        found = True, seed
    elif type(sampler) is SequentialSampler:
        found = False, seed
    else:
        raise InputError(
            f"the loader has the sampler {type(sampler).__name__}{_asked(sampler)}; expected shuffle=True or "
            "False, DistributedSampler, or in place of the loader a function of step and share, so that a batch can be "
            "drawn again"
        )
    if loader.batch_size is None:
        raise InputError(
            "the loader has a batch_sampler or no batch size; expected batch_size, or in place of the loader a "
            "function of step and share, so that a batch can be drawn again"
        )
    return found


def _takes_all(loader: DataLoader) -> bool:
    return loader.sampler.num_samples == len(loader.dataset)  # type: ignore[attr-defined, arg-type]


def _asked(sampler: Any) -> str:
    """Settings of a RandomSampler that make its order another one."""
    if not isinstance(sampler, RandomSampler):
        return ""
    return f" of {sampler.num_samples} samples, replacement={sampler.replacement}"
