"""Batches and random numbers as functions of their position."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from wirewise.errors import InputError
from wirewise.runtime.recovery.batches import TrainingBatches, shares_of

DATA = TensorDataset(torch.arange(22))


def values(batches: TrainingBatches, steps: range, own: range) -> list[list[int]]:
    return [batches.draw(step, share, own)[0].tolist() for step in steps for share in own]


@pytest.mark.parametrize("shares", [1, 3, 4, 7])
def test_processes_divide_all_shares_evenly(shares):
    for processes in range(1, shares + 1):
        parts = [shares_of(place, processes, shares) for place in range(processes)]
        assert [share for part in parts for share in part] == list(range(shares))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("drop_last", [False, True])
def test_each_share_gets_what_the_distributed_sampler_would_give_its_rank(drop_last):
    batches = TrainingBatches(DataLoader(DATA, 4, shuffle=True, drop_last=drop_last), 3, seed=5)
    for share in range(3):
        sampler = DistributedSampler(DATA, 3, share, shuffle=True, seed=5, drop_last=drop_last)
        expected = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            loader = DataLoader(DATA, 4, sampler=sampler, drop_last=drop_last)
            expected += [batch[0].tolist() for batch in loader]
        steps = range(2 * batches.steps_per_epoch)
        assert values(batches, steps, range(share, share + 1)) == expected


def test_any_batch_can_be_drawn_again_from_anywhere():
    batches = TrainingBatches(DataLoader(DATA, 2, shuffle=True), 3, seed=5)
    own = range(2)
    all_of_them = values(batches, range(8), own)
    for step in (7, 2, 3, 3, 0):
        assert values(batches, range(step, step + 1), own) == all_of_them[2 * step : 2 * step + 2]


def test_a_function_is_asked_for_step_and_share():
    assert TrainingBatches(lambda step, share: (step, share), 3, seed=0).draw(5, 2, range(2, 3)) == (5, 2)


class Backwards(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(22))


class Twice(DataLoader):
    def __iter__(self):
        return iter([*super().__iter__()] * 2)


def test_the_sampler_and_the_loader_may_drop_different_ends():
    sampler = DistributedSampler(DATA, 3, 0, shuffle=False, drop_last=False)
    batches = TrainingBatches(DataLoader(DATA, 4, sampler=sampler, drop_last=True), 3, seed=0)
    # Eight samples a share, with two that come twice; two whole batches.
    assert batches.steps_per_epoch == 2
    assert values(batches, range(2), range(1))[1] == [12, 15, 18, 21]


def test_loaders_whose_batches_cannot_be_drawn_again_are_refused_by_name():
    weighted = DataLoader(DATA, 2, sampler=WeightedRandomSampler([1.0] * 22, 22))
    for loader, told in (
        (weighted, "WeightedRandomSampler"),
        (DataLoader(DATA, batch_sampler=[[1], [2]]), "batch_sampler"),
        ([1, 2], "type list"),
        (DataLoader(DATA, 100, drop_last=True), "fewer than 3 shares of 100"),
        (DataLoader(DATA, 2, shuffle=True, generator=torch.Generator()), "the loader has a generator"),
        (DataLoader(DATA, 2, sampler=RandomSampler(DATA, num_samples=8)), "RandomSampler of 8 samples"),
        (DataLoader(DATA, 2, sampler=RandomSampler(DATA, replacement=True)), "replacement=True"),
        (DataLoader(DATA, 2, sampler=Backwards(DATA)), "Backwards"),
        (DataLoader(DATA, 2, num_workers=1, in_order=False), "in_order=False"),
        (DataLoader(Stream(), 2), "IterableDataset Stream"),
        (Twice(DATA, 2), "Twice has a __iter__ of its own"),
    ):
        with pytest.raises(InputError, match=told):
            TrainingBatches(loader, 3, seed=0)
