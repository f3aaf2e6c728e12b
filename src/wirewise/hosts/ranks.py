"""Exit states of the ranks of a job, and the grace period after a failure."""

from __future__ import annotations

import signal
import time

__all__ = ["GRACE_S", "RankStates", "describe_exit"]

GRACE_S = 20.0
"""Seconds that ranks have to end by themselves after one has failed, unless whoever starts them says otherwise."""


class RankStates:
    """Exits of the ranks of one job, however they were started.

    Args:
        count: Number of ranks.
        grace_s: Seconds that the other ranks have to end by themselves after a failure.
    """

    def __init__(self, count: int, grace_s: float = GRACE_S) -> None:
        self.count, self.grace_s = count, grace_s
        self.exit_codes: dict[int, int] = {}
        """Exit code of each rank that has ended, negative if a signal ended it."""
        self.first_failed: int | None = None
        """Rank that failed first; the others were ended for it, or noticed."""
        self.ended_s = 0.0
        """Time of the latest end, on the monotonic clock."""
        self._failed_s = float("inf")

    @property
    def running(self) -> bool:
        """Whether a rank is still running."""
        return len(self.exit_codes) < self.count

    @property
    def overdue(self) -> bool:
        """Whether a rank has failed and the grace period of the others is over."""
        return time.monotonic() > self._failed_s + self.grace_s

    def note_end(self, rank: int, exit_code: int, at_s: float | None = None) -> None:
        """Record the exit of a rank; later reports for it are ignored.

        Args:
            rank: Index of the rank.
            exit_code: Exit code of the rank, negative if a signal ended it.
            at_s: Time of the exit, in seconds. Defaults to now.
        """
        if self.exit_codes.setdefault(rank, exit_code) and self.first_failed is None:
            self.first_failed, self._failed_s = rank, time.monotonic()
        self.ended_s = max(self.ended_s, time.monotonic() if at_s is None else at_s)


def describe_exit(code: int) -> str:
    """Describe how a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        # Most real-time signals have no name.
        return f"killed by signal {-code}"
