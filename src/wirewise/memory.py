"""Resident memory of this process, as the kernel counts it."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from pathlib import Path

__all__ = [
    "ALL_KEPT",
    "KEPT_BYTES",
    "available_bytes",
    "keep_freed_memory",
    "peak_resident_bytes",
    "resident_bytes",
]

KEPT_BYTES = 16 << 20
"""Freed blocks below this size are kept for the next tensors."""

ALL_KEPT = (1 << 31) - 1
"""Largest size that glibc accepts: every freed block is kept."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def resident_bytes() -> int:
    """Current RSS, in bytes."""
    return _status("VmRSS")


def available_bytes() -> int:
    """Memory available to this process without swapping, within its cgroup's and its own limits, in bytes."""
    text = Path("/proc/meminfo").read_text()
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    rooms = [int(match[1]) * 1024 if match else 1 << 62, _group_room()]
    for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            rooms.append(most - _status(used))
    return max(min(rooms), 0)


def _group_room() -> int:
    """Memory that the control group of this process has left; pages of files count as free."""
    try:
        group = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        folder = Path("/sys/fs/cgroup") / (group[1].lstrip("/") if group else "")
        most, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        files = re.search(r"^file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return 1 << 62
    return 1 << 62 if most == "max" else int(most) - used + (int(files[1]) if files else 0)


def peak_resident_bytes() -> int:
    """Peak RSS since the process started, in bytes."""
    return _status("VmHWM")


def _status(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def keep_freed_memory(below_bytes: int = KEPT_BYTES, *, shared: bool = False) -> None:
    """Make glibc keep freed blocks below a size for later tensors; larger ones are returned to the kernel.

    An epoch frees and allocates the same tensors again and again; returning each costs a page fault for every 4 KiB.
    But kept blocks are fragmented by smaller ones and then fit no tensor of their size: with all blocks kept, the RSS
    of a large training grows to nearly twice its live memory. Large blocks are therefore returned, and allocated in
    huge pages, which is cheap. Without huge pages in the kernel all blocks are kept, and with another C library
    nothing is done.

    Call it before the first tensor is created: torch decides then whether to use huge pages.

    Args:
        below_bytes: Smallest block that is returned, in bytes.
        shared: Whether memory freed by one thread serves the others; otherwise each thread has its own arena.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    # Whether a process that asks for huge pages gets them.
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if setting.exists() and "[never]" not in setting.read_text():
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    else:
        below_bytes = ALL_KEPT
    mallopt(_M_MMAP_THRESHOLD, below_bytes)
    mallopt(_M_TRIM_THRESHOLD, ALL_KEPT)
    if shared:
        mallopt(_M_ARENA_MAX, 1)
