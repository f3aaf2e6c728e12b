"""Compile the CPU kernels before the first epoch, once for all ranks of a machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from wirewise import codec
from wirewise.graph import ops
from wirewise.planners import bitwidth

__all__ = ["warm"]

_LOCK = "kernels.lock"


def warm() -> None:
    """Compile the kernels of training, or load them from numba's cache on disk.

    The ranks of one machine run in sequence: the first one compiles (half a minute), the others load in a second.
    """
    with _turn():
        codec.warm()
        ops.warm()
        bitwidth.warm()


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One process of this user at a time; without a folder of the user's own nobody waits.

    The lock lies in the user's cache folder, never in one that others can write to: there a stranger could hold it for
    ever, or put a link to another file in its place.
    """
    try:
        # A user without an entry and without a home, as in a container, has no cache folder.
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wirewise"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, RuntimeError):
        # Kernels are then compiled by each rank: slower, and right.
        yield
        return
    try:
        # Released by the kernel even if this process is killed.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
