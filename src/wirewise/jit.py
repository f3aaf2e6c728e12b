"""Compilation of kernels by numba: cache location, and messages during compilation. Needs no torch."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

__all__ = ["announce", "kernels", "njit", "private_folder"]

_COMPILING = "compiling kernels, once on this machine; `wirewise doctor --warm` compiles them ahead"
_kernels: list[Any] = []
_announcers: list[Callable[[str], object]] = []


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function to be compiled by numba on its first call and cached on disk.

    Compiled code is stored beside the source or, if that is not writable, in the user's cache (`NUMBA_CACHE_DIR`
    overrides it). If neither is writable, as in a container or for a service user, it is stored in a private folder
    in the temporary directory; without any, it is compiled in each process.

    Args:
        **options: Options of `numba.njit`; `nogil` is set by default.
    """
    import numba

    _listen()
    options = {"nogil": True, **options}

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            kernel = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            # numba finds no folder that it can write: it says so when a function is decorated.
            kernel = _elsewhere(numba, function, options)
        _drop_stale(kernel)
        _save_apart(kernel)
        _kernels.append(kernel)
        return kernel

    return compiled


def _elsewhere(numba: Any, function: Any, options: dict[str, Any]) -> Any:
    folder = private_folder()
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)
        with suppress(RuntimeError):
            return numba.njit(cache=True, **options)(function)
    return numba.njit(**options)(function)


def _drop_stale(kernel: Any) -> None:
    """Let an index of another version that cannot be read count as empty, so that the kernel is compiled again."""
    stored: Any = getattr(kernel, "_cache", None)
    if not hasattr(stored, "load_overload") or not hasattr(stored, "flush"):
        return
    load = stored.load_overload

    def load_overload(*args: Any) -> Any:
        # numba reads signatures before it compares the source's date: a renamed NamedTuple among the arguments raises.
        try:
            return load(*args)
        except (AttributeError, ImportError, TypeError):
            with suppress(OSError):
                stored.flush()
            return None

    stored.load_overload = load_overload


def _save_apart(kernel: Any) -> None:
    """Keep the compiled code of each signature in a file of its own name, written before the index that names it.

    numba numbers files by an index that it read before. Of two processes that compile a kernel for different types at
    the same time, each could write the file that the other's index names: the next process ran code for wrong types.
    Now one of them is at worst missing in the index, and compiled again.
    """
    files: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if not all(hasattr(files, name) for name in ("_load_index", "_save_index", "_save_data", "_data_name")):
        return

    def save(key: Any, data: Any) -> None:
        # By the key, which also tells the processor and the source apart: two processes write one file only alike.
        name = files._data_name(int.from_bytes(blake2b(repr(key).encode(), digest_size=6).digest()))
        files._save_data(name, data)
        files._save_index({**files._load_index(), key: name})

    files.save = save


@cache
def private_folder() -> Path | None:
    """Private folder for compiled code in the temporary directory. None if it is not this user's alone.

    Compiled code is executed unchecked, so a folder that others own or can write to is refused.
    """
    # Without any folder that can be written, as in a container that is read only, there is no temporary one either.
    with suppress(OSError):
        path = Path(tempfile.gettempdir()) / f"wirewise-kernels-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return path
    return None


def kernels() -> list[Any]:
    """All kernels of imported modules."""
    return list(_kernels)


def announce(write: Callable[[str], object]) -> None:
    """Call `write` with a line when the first kernel is compiled from now on; cached code is not compiled."""
    _announcers.append(write)


@cache
def _listen() -> None:
    from numba.core import event

    class Compiling(event.Listener):  # type: ignore[misc,unused-ignore]
        def on_start(self, event: Any) -> None:
            while _announcers:
                _announcers.pop()(_COMPILING)

        def on_end(self, event: Any) -> None:
            """Nothing is said of the end."""

    event.register("numba:compile", Compiling())
