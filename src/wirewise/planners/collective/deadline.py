"""Work limit passed down to searches, which check it between their parts."""

from __future__ import annotations

import math

from wirewise import work

__all__ = ["Deadline", "DeadlineReached"]


class DeadlineReached(Exception):
    """Raised when a time limit has passed; its setter uses the best result so far."""


class Deadline:
    """Limit of work (`wirewise.work`) that starts now.

    Args:
        time_limit_s: Limit in seconds; infinite for no limit.
    """

    def __init__(self, time_limit_s: float = math.inf) -> None:
        self._ends_s = work.spent_s() + time_limit_s

    @property
    def left_s(self) -> float:
        """Remaining time, in seconds; negative after the deadline."""
        return self._ends_s - work.spent_s()

    def check(self, work_s: float = 0.0) -> None:
        """Count work, in seconds of an unloaded CPU, and raise `DeadlineReached` if the limit has passed."""
        work.charge(work_s)
        if self.left_s <= 0:
            raise DeadlineReached
