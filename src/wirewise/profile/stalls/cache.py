"""MinIO-style cache of data set items: items enter until it is full and are never evicted.

Every pass over a data set then hits exactly the cached fraction, where a cache with eviction would drop items that
the pass is about to need (CoorDL, VLDB 2021). Items are files in a folder, preferably in memory, shared by all ranks
and loader workers of a host.
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
    """In-memory folder if there is one, otherwise the folder of temporary files."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def cache_folder() -> Iterator[Path]:
    """Create a temporary in-memory folder, after removing those left by killed processes."""
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
    """Remove this user's in-memory caches whose owners are dead; returns their paths."""
    removed = []
    for folder in memory_folder().glob(f"{_PREFIX}*"):
        handle = _lock(folder)
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)
            removed.append(str(folder))
    return removed


def _lock(folder: Path) -> int | None:
    """A handle that holds a folder of this user until it is closed; None if another process holds it, or it is gone."""
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
    """Items of a data set by index, in files; usable by many processes at once.

    Args:
        folder: Folder with a file for each item, and the count.
        capacity: Maximum number of cached items.
    """

    def __init__(self, folder: str | os.PathLike[str], capacity: int) -> None:
        self.folder, self.capacity = Path(folder), capacity
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, index: int, fetch: Callable[[int], Any]) -> tuple[Any, bool]:
        """Get an item, and whether it was cached; a miss is fetched, and cached if there is room."""
        try:
            with self._file(index).open("rb") as file:
                return pickle.load(file), True
        except FileNotFoundError:
            item = fetch(index)
            self._enter(index, item)
            return item, False

    def fill(self, indices: Iterable[int], fetch: Callable[[int], Any]) -> None:
        """Fetch items in order until the cache is full.

        Raises:
            InputError: The items do not fit into free memory.
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
        """Wait until the cache is full; other processes fill their parts."""
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
