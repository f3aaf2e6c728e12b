"""A cache of data set items in the manner of MinIO: items enter until it is full and are never replaced.

Every pass over a data set then hits exactly the cached fraction, where a cache that replaces would throw out
what the pass is about to need (CoorDL, VLDB 2021). Items lie in a folder, best one in memory, that all ranks and
loader workers of a host share.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wirewise.errors import InputError

__all__ = ["ItemCache", "cache_folder", "memory_folder", "remove_stale"]

_PREFIX = "wirewise-cache-"


def memory_folder() -> Path:
    """A folder whose files stay in memory where there is one, otherwise the folder of temporary files."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def cache_folder() -> Iterator[Path]:
    """A new folder in memory that goes with the block; those that killed processes left are removed first."""
    remove_stale()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=memory_folder()))
        # Held as long as this process lives; another one may have removed it before.
        handle = _lock(folder)
        if handle is not None:
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_stale() -> list[str]:
    """Remove the caches in memory of this user whose owners are gone; returns their paths."""
    removed = []
    for folder in memory_folder().glob(f"{_PREFIX}*"):
        handle = _lock(folder)
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)
            removed.append(str(folder))
    return removed


def _lock(folder: Path) -> int | None:
    """A handle that holds a folder of this user until it is closed; None: another process holds it, or it is gone."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(handle).st_uid == os.getuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.lstat(folder)):
                return handle
    os.close(handle)
    return None


class ItemCache:
    """Items of a data set by index, in files; many processes may use one folder.

    Args:
        folder: Holds a file for each item, and the count.
        capacity: Number of items that enter; later ones stay outside.
    """

    def __init__(self, folder: str | os.PathLike[str], capacity: int) -> None:
        self.folder, self.capacity = Path(folder), capacity
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, index: int, fetch: Callable[[int], Any]) -> tuple[Any, bool]:
        """The item, and whether it was cached; one that is not is fetched, and enters where there is room."""
        try:
            with self._file(index).open("rb") as file:
                return pickle.load(file), True
        except FileNotFoundError:
            item = fetch(index)
            self._enter(index, item)
            return item, False

    def fill(self, indices: Iterable[int], fetch: Callable[[int], Any]) -> None:
        """Fetch items in turn until the cache is full.

        Raises:
            InputError: They do not fit into the memory that is free.
        """
        for number, index in enumerate(indices):
            if len(self) >= self.capacity:
                return
            if self._file(index).exists():
                continue
            item = fetch(index)
            if number == 0:
                self._check_room(len(pickle.dumps(item, protocol=5)))
            self._enter(index, item)

    def wait_until_full(self) -> None:
        """Return once as many items as have room have entered; other processes fill their parts."""
        while len(self) < self.capacity:
            time.sleep(0.02)

    def __len__(self) -> int:
        """Number of items that have entered."""
        try:
            return int((self.folder / "count").read_text() or 0)
        except FileNotFoundError:
            return 0

    def _enter(self, index: int, item: Any) -> None:
        if len(self) >= self.capacity:
            return
        with self._locked_count() as count:
            if count[0] < self.capacity and not self._file(index).exists():
                unfinished = self.folder / f"{index}.{os.getpid()}.part"
                unfinished.write_bytes(pickle.dumps(item, protocol=5))
                unfinished.replace(self._file(index))
                count[0] += 1

    def _file(self, index: int) -> Path:
        return self.folder / str(index)

    def _check_room(self, item_bytes: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if item_bytes * self.capacity > 0.9 * free:
            raise InputError(
                f"{self.capacity} cached items of {item_bytes} bytes do not fit into the {free} bytes that are "
                f"free in {self.folder.parent}; cache a smaller fraction or fewer items"
            )

    @contextmanager
    def _locked_count(self) -> Iterator[list[int]]:
        with (self.folder / "count").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            count = [int(file.read() or 0)]
            yield count
            file.truncate(0)
            file.write(str(count[0]))
