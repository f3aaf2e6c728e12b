"""Name of this machine's processor."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["processor"]


def processor() -> tuple[str, int]:
    """Model name of the CPU, or its architecture if unknown, and the number of logical cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0], len(names)) if names else (platform.machine(), os.cpu_count() or 1)
