"""Signals that end a process, turned into an exit in order, so that what it started ends with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType

__all__ = ["catch_signals", "restore_signals"]


def catch_signals() -> list[int]:
    """Unwind on a signal that would end this process at once, with the exit code that shells give for it.

    Returns:
        What is caught now; a program's own handlers stay, and in other threads than the main one nothing can be caught.
    """
    caught: list[int] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _leave)
                caught.append(number)
    return caught


def restore_signals(caught: Iterable[int]) -> None:
    """Let the signals of `catch_signals` end this process at once again."""
    for number in caught:
        signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
