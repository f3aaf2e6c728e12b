"""How kernels are compiled by numba: where compiled code is kept, and what is said meanwhile. Needs no torch."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["announce", "kernels", "njit", "private_folder"]

_COMPILING = "compiling kernels, once on this machine; `wirewise doctor --warm` compiles them ahead"
_kernels: list[Any] = []
_announcers: list[Callable[[str], object]] = []


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a function that numba compiles when it is first called, and keeps on disk.

    Compiled code lies beside the source, or where that cannot be written in the user's cache (`NUMBA_CACHE_DIR` names
    another place). Where neither can be written, as in a container or for a service's user, it lies in a folder of the
    user's own below the one for temporary files; without any it is compiled in each process.

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


@cache
def private_folder() -> Path | None:
    """Folder for compiled code below the one for temporary files; None if none is this user's alone.

    Compiled code is run as it is read, so a folder that others own or can write to is not taken.
    """
    path = Path(tempfile.gettempdir()) / f"wirewise-kernels-{os.getuid()}"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return path
    return None


def kernels() -> list[Any]:
    """All kernels of modules that were imported."""
    return list(_kernels)


def announce(write: Callable[[str], object]) -> None:
    """Have a line written when the first kernel is compiled from now on; code that is on disk is not compiled."""
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
