"""Resident memory of this process, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["peak_resident_bytes", "resident_bytes"]


def resident_bytes() -> int:
    """Resident set now."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Largest resident set since the process started."""
    return _status("VmHWM")


def _status(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
