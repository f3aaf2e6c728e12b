"""A time limit that is passed down: searches look at it between their parts."""

from __future__ import annotations

import math
import time

__all__ = ["Deadline", "Late"]


class Late(Exception):
    """A time limit has passed; who set it takes what there is."""


class Deadline:
    """The end of a time limit that begins now.

    Args:
        time_limit_s: How long; infinite: no limit.
    """

    def __init__(self, time_limit_s: float = math.inf) -> None:
        self._ends_s = time.monotonic() + time_limit_s

    @property
    def left_s(self) -> float:
        """What is left of it; below 0 afterwards."""
        return self._ends_s - time.monotonic()

    def check(self) -> None:
        """Raise `Late` if the limit has passed."""
        if self.left_s <= 0:
            raise Late
