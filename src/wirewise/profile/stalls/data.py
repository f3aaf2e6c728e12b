"""Data of a script's loaders in a run: replayed, cached, or from cold storage.

A data set whose `__getitem__(index)` is `prepare(fetch(index))` can expose both methods: fetching is then timed
separately from preparing, and cached alone. For any other data set only the page cache can be warm or cold.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from wirewise.profile.stalls.cache import ItemCache
from wirewise.profile.stalls.settings import StallSettings

__all__ = ["LANE", "TimedDataset", "drop_pages_on_open", "is_separable", "replay", "serve"]

LANE = struct.Struct("<4d")
"""Seconds of fetching and of preparing; number of items, and of cached ones."""

_FLUSH_S = 0.001
_SEED = 20_230_712


def is_separable(dataset: Any) -> bool:
    """Whether fetching and preparing an item can be separated."""
    return all(callable(getattr(dataset, name, None)) for name in ("fetch", "prepare"))


def replay(first: list[Any], length: int | None) -> Iterator[Any]:
    """Yield an epoch of `length` batches kept in memory; endless if None."""
    number = 0
    while length is None or number < length:
        batch = first[number % len(first)]
        # Scripts take batches apart; containers are theirs, the tensors in them are shared.
        yield type(batch)(batch) if type(batch) in (list, dict) else batch
        number += 1


def serve(dataset: Any, settings: StallSettings, local_rank: int, local_ranks: int) -> Any:
    """Wrap the data set for a run: caches are full, pages are warm."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return dataset
    try:
        num_items = len(dataset)
    except TypeError:
        num_items = 0
    fold = min(num_items, settings.cached_items) if settings.data == "cached" else 0
    served = TimedDataset(dataset, settings, num_items, fold)
    served.fill(local_rank, local_ranks)
    return served


class TimedDataset:
    """Wrapper of a data set that times its parts while loaders read it."""

    def __init__(self, dataset: Any, settings: StallSettings, num_items: int, fold: int) -> None:
        cache = None
        if is_separable(dataset) and num_items and settings.data in ("cached", "partial"):
            capacity = fold or round(settings.fraction * num_items)
            cache = ItemCache(settings.cache_folder, capacity) if capacity else None
        own = {
            "_dataset": dataset,
            "_settings": settings,
            "_num_items": num_items,
            "_fold": fold,
            "_cache": cache,
            "_lane": _Lane(settings.folder),
        }
        self.__dict__.update(own)

    def __reduce__(self) -> Any:
        return TimedDataset, (self._dataset, self._settings, self._num_items, self._fold)

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__" and is_separable(self._dataset):
            raise AttributeError(name)
        found = getattr(self._dataset, name)
        return self._many if name == "__getitems__" else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        index, start = self._place(index), time.perf_counter()
        if not is_separable(self._dataset):
            item = self._dataset[index]
            self._lane.add(0.0, time.perf_counter() - start, 1, 0)
            return item
        if self._cache is None:
            raw, hit = self._dataset.fetch(index), False
        else:
            raw, hit = self._cache.get(index, self._dataset.fetch)
        fetched = time.perf_counter()
        item = self._dataset.prepare(raw)
        self._lane.add(fetched - start, time.perf_counter() - fetched, 1, int(hit))
        return item

    def _many(self, indices: list[Any]) -> Any:
        start = time.perf_counter()
        items = self._dataset.__getitems__([self._place(i) for i in indices])
        self._lane.add(0.0, time.perf_counter() - start, len(indices), 0)
        return items

    def fill(self, local_rank: int, local_ranks: int) -> None:
        """Preload what the run expects in memory; the ranks of a host share the work."""
        if self._cache is not None:
            chosen = self._chosen(self._cache.capacity)
            self._cache.fill(chosen[local_rank::local_ranks], self._dataset.fetch)
            self._cache.wait_until_full()
        elif self._fold and not is_separable(self._dataset):
            for index in self._chosen(self._fold)[local_rank::local_ranks]:
                self._dataset[index]

    def _chosen(self, count: int) -> list[int]:
        if self._fold:
            return [self._place(i) for i in range(count)]
        # The same ones on every host, and not those that lie together in storage.
        return random.Random(_SEED).sample(range(self._num_items), count)

    def _place(self, index: Any) -> Any:
        if not self._fold or not isinstance(index, int):
            return index
        return index % self._fold * self._num_items // self._fold

    def flush(self) -> None:
        """Write this process's records."""
        self._lane.flush()


class _Lane:
    """Adds up seconds in one process and appends them to its file, which survives the process."""

    def __init__(self, folder: str) -> None:
        self._folder, self._pid = folder, -1
        self._sums, self._written_s = [0.0] * 4, 0.0

    def add(self, *amounts: float) -> None:
        if self._pid != os.getpid():
            # A forked worker starts anew.
            self._pid, self._sums = os.getpid(), [0.0] * 4
        self._sums = [a + b for a, b in zip(self._sums, amounts, strict=True)]
        if time.perf_counter() - self._written_s > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        if self._pid == os.getpid():
            name = f"lane-{os.environ.get('RANK', '0')}-{self._pid}.bin"
            with (Path(self._folder) / name).open("ab") as file:
                file.write(LANE.pack(*self._sums))
            self._sums, self._written_s = [0.0] * 4, time.perf_counter()


def drop_pages_on_open() -> None:
    """Drop each data file from the page cache when this process or a fork of it first opens it.

    Each file is dropped once, so that repeated reads are as warm as normally. Mapped and dirty pages stay.
    """
    seen: set[str] = set()
    passed_by = ("/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        path = os.path.abspath(arguments[0])  # noqa: PTH100
        if path in seen or path.startswith(passed_by) or path.endswith((".py", ".pyc", ".so")):
            return
        seen.add(path)
        if Path(path).is_file():
            _drop_pages(path)

    sys.addaudithook(hook)


def _drop_pages(path: str) -> None:
    with suppress(OSError), Path(path).open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def take_batches(loader: DataLoader, iterator: Iterator[Any], count: int) -> list[Any]:
    """Take the first `count` batches, and stop the workers that loaded them."""
    first = []
    for batch in iterator:
        first.append(batch)
        if len(first) == count:
            break
    stop = getattr(iterator, "_shutdown_workers", None)
    if stop is not None:
        stop()
        loader._iterator = None
    return first
