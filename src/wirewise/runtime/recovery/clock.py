"""Common clock of all hosts of a protected training, for timing recoveries."""

from __future__ import annotations

import os
import time

__all__ = ["CLOCK_AHEAD", "clock_s"]

CLOCK_AHEAD = "WIREWISE_CLOCK_AHEAD_S"
"""Environment variable with the seconds by which this host's clock is ahead of the common one. Defaults to 0."""


def clock_s() -> float:
    """Seconds since 1970 on the common clock."""
    return time.time() - float(os.environ.get(CLOCK_AHEAD, "0"))
