"""Resident memory of this process, as the kernel counts it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

__all__ = ["keep_freed_memory", "peak_resident_bytes", "resident_bytes"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def resident_bytes() -> int:
    """Resident set now."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Largest resident set since the process started."""
    return _status("VmHWM")


def _status(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks for the next tensors.

    An epoch frees and allocates the same large tensors again and again; giving each back to the kernel costs
    a page fault for every 4 KiB of it. Does nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
