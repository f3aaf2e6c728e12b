"""Processes of this host as the kernel shows them: children, sessions, what runs, and who ends with whom."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["adopt_orphans", "children_of", "die_with_parent", "end_session", "is_cleaner", "is_computing"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Helpers that remove shared memory once their users are gone, and then end by themselves."""
_ROUND_S = 0.01


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel end this process by SIGKILL when its parent ends.

    Args:
        parent: Process id that the parent had; this process ends at once if it is gone already. Defaults to not asking.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends, instead of the system's first process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """Process ids of the children of a process."""
    found: set[int] = set()
    try:
        for listing in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                found |= {int(child) for child in listing.read_text().split()}
        if Path(f"/proc/{pid}/task/{pid}/children").exists():
            return found
    except OSError:
        return found
    # Kernels without CONFIG_PROC_CHILDREN.
    return {child for child, fields in _stats() if int(fields[1]) == pid}


def end_session(session: int, limit_s: float = 5.0) -> None:
    """End all processes of a session, also those that they start meanwhile.

    Args:
        session: Process id of its first process.
        limit_s: Seconds after which processes that do not end by SIGKILL are left.
    """
    deadline = time.monotonic() + limit_s
    while left := [pid for pid, fields in _stats() if int(fields[3]) == session and fields[0] not in "ZX"]:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(_ROUND_S)


def is_cleaner(pid: int) -> bool:
    """Whether a process only removes what others leave in shared memory, and ends after them."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _CLEANERS)


def is_computing(pid: int) -> bool:
    """Whether a thread of a process runs, or waits for a processor to run on."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError, IndexError):
            if path.read_text().rsplit(")", 1)[1].split()[0] == "R":
                return True
    return False


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Process id of each process, and its fields in /proc from the state on."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
