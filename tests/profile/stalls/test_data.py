"""The cache, the stand-in for a data set, replayed batches."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from wirewise.errors import InputError
from wirewise.profile.stalls import data
from wirewise.profile.stalls.cache import ItemCache
from wirewise.profile.stalls.settings import VARIABLE, StallSettings


def settings(tmp_path, kind, **changes):
    return StallSettings(
        folder=str(tmp_path), cache_folder=str(tmp_path / "cache"), data=kind, warmup=1, steps=2, **changes
    )


class Separable(Dataset):
    def __init__(self, count):
        self.count, self.fetched = count, []

    def __len__(self):
        return self.count

    def fetch(self, index):
        self.fetched.append(index)
        return {"index": index}

    def prepare(self, raw):
        return torch.tensor(raw["index"])

    def __getitem__(self, index):
        return self.prepare(self.fetch(index))


class Plain(Dataset):
    def __init__(self, count):
        self.count, self.seen = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.seen.append(index)
        return index


def totals(folder):
    rows = [r for p in Path(folder).glob("lane-*") for r in data.LANE.iter_unpack(p.read_bytes())]
    return np.sum(rows, axis=0)


def test_items_enter_until_the_cache_is_full_and_stay(tmp_path):
    cache = ItemCache(tmp_path / "c", 3)
    assert [cache.get(i, lambda i: i * 10) for i in (5, 6, 5, 7)] == [(50, 0), (60, 0), (50, 1), (70, 0)]
    assert len(cache) == 3
    assert cache.get(8, lambda i: i) == (8, False)
    assert cache.get(8, lambda i: i) == (8, False)
    assert cache.get(5, lambda i: pytest.fail("fetched again")) == (50, True)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 1.0])
def test_every_pass_hits_exactly_the_cached_fraction(tmp_path, fraction):
    served = data.serve(Separable(40), settings(tmp_path, "partial", fraction=fraction), 0, 1)
    for seed in range(3):
        for index in np.random.default_rng(seed).permutation(40).tolist():
            assert int(served[index]) == index
    served.flush()
    _, _, items, hits = totals(tmp_path)
    assert (items, hits) == (120, 120 * fraction)


def test_many_writers_fill_a_cache_exactly(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        caches = [ItemCache(tmp_path / "c", 50) for _ in range(8)]
        list(pool.map(lambda k: caches[k % 8].get(k % 90, str), range(400)))
    assert len(caches[0]) == 50
    assert len([p for p in (tmp_path / "c").iterdir() if p.name.isdigit()]) == 50


def test_what_does_not_fit_into_memory_is_named(tmp_path):
    cache = ItemCache(tmp_path / "c", 10**12)
    with pytest.raises(InputError, match="cache a smaller fraction"):
        cache.fill(range(4), lambda i: bytes(10**6))


def test_the_ranks_of_a_host_fill_their_shares(tmp_path):
    wish = settings(tmp_path, "cached", cached_items=8)
    first, second = Separable(100), Separable(100)
    with ThreadPoolExecutor(2) as pool:
        one, two = (pool.submit(data.serve, d, wish, r, 2) for r, d in enumerate((first, second)))
    assert sorted(first.fetched + second.fetched) == [i * 100 // 8 for i in range(8)]
    # Larger data sets are folded onto what is cached: everything hits.
    for served in (one.result(), two.result()):
        assert {int(served[i]) for i in range(100)} == {i * 100 // 8 for i in range(8)}
    assert len(first.fetched) == len(second.fetched) == 4


def test_a_plain_data_set_is_read_once_before(tmp_path):
    plain = Plain(50)
    served = data.serve(plain, settings(tmp_path, "cached", cached_items=5), 0, 1)
    assert plain.seen == [0, 10, 20, 30, 40]
    assert [served[i] for i in (7, 8)] == [20, 30]
    cold = Plain(50)
    assert data.serve(cold, settings(tmp_path, "cold"), 0, 1)[7] == 7
    assert cold.seen == [7]


def test_the_stand_in_is_what_it_stands_for(tmp_path):
    served = data.serve(Separable(9), settings(tmp_path, "cold"), 0, 1)
    served.marker = 3
    assert served.count == 9 and served._dataset.marker == 3
    assert int(pickle.loads(pickle.dumps(served))[4]) == 4
    with pytest.raises(AttributeError):
        served.absent  # noqa: B018


class Batched(Plain):
    def __getitems__(self, indices):
        return [-i for i in indices]


def test_batched_access_stays_batched(tmp_path):
    served = data.serve(Batched(20), settings(tmp_path, "cached", cached_items=10), 0, 1)
    loader = DataLoader(Batched(20), batch_size=4)
    loader.__dict__["dataset"] = served
    assert torch.cat(list(loader)).tolist() == [-(i % 10 * 2) for i in range(20)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_a_stream_is_left_alone(tmp_path):
    stream = Stream()
    assert data.serve(stream, settings(tmp_path, "cached"), 0, 1) is stream


def test_workers_note_their_items_too(tmp_path):
    served = data.serve(Separable(64), settings(tmp_path, "cached", cached_items=64), 0, 1)
    loader = DataLoader(served, batch_size=8, num_workers=2)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(64))
    _, _, items, hits = totals(tmp_path)
    assert 0 < items <= 64 and items == hits


def test_batches_are_replayed_and_may_be_taken_apart():
    first = [{"x": 1}, [2, 3], 4]
    epoch = list(data.replay(first, 7))
    assert epoch == [{"x": 1}, [2, 3], 4, {"x": 1}, [2, 3], 4, {"x": 1}]
    epoch[0].pop("x")
    epoch[1].pop()
    assert first == [{"x": 1}, [2, 3], 4]
    assert list(data.replay([], 0)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_first_batches_are_kept(workers):
    loader = DataLoader(Plain(100), batch_size=5, num_workers=workers, persistent_workers=workers > 0)
    kept = data.take_batches(loader, iter(loader), 3)
    assert [b.tolist() for b in kept] == [[5 * k + i for i in range(5)] for k in range(3)]
    assert len(list(loader)) == 20


def test_settings_pass_through_the_environment(tmp_path, monkeypatch):
    wish = settings(tmp_path, "partial", fraction=0.25)
    for name, value in wish.variables().items():
        monkeypatch.setenv(name, value)
    assert VARIABLE in os.environ
    assert StallSettings.read() == wish
