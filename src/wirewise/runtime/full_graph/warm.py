"""Compile the CPU kernels before the first epoch, once for all ranks of a machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from wirewise import codec
from wirewise.graph import ops
from wirewise.planners import bitwidth

__all__ = ["warm"]


def warm() -> None:
    """Compile what training needs, or load it from numba's cache on disk.

    The ranks of one machine take turns: the first one compiles (half a minute), the others load in a second.
    """
    lock = Path(tempfile.gettempdir()) / f"wirewise-kernels-{os.getuid()}.lock"
    with lock.open("w") as file:
        # Released by the kernel even if this process is killed.
        fcntl.flock(file, fcntl.LOCK_EX)
        codec.warm()
        ops.warm()
        bitwidth.warm()
