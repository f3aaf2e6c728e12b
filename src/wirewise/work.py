"""Work units of searches, in seconds of one idle reference CPU (Xeon, 2.1 GHz): the clock of all search limits.

A limit in wall time silently gave a plan 2.5 times worse on a busy machine. Work is counted where it is done (messages
simulated, flows found, chunks matched, iterations and nodes of solvers), so that a limit ends a search at the same
place on every machine; a busy one takes longer.
"""

from __future__ import annotations

import threading

__all__ = ["charge", "spent_s"]


class _Spent(threading.local):
    seconds = 0.0


_spent = _Spent()


def charge(seconds: float) -> None:
    """Charge work to this thread, in reference CPU seconds."""
    _spent.seconds += seconds


def spent_s() -> float:
    """Total work of this thread, in reference CPU seconds; never decreases."""
    return _spent.seconds
