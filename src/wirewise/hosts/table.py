"""Processes started on a host, by key, tracked until none of their descendants is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from wirewise.hosts.fork_server import ForkedProcess

__all__ = ["ProcessEntry", "ProcessTable"]


class ProcessEntry(Protocol):
    """Entry that has a process."""

    @property
    def process(self) -> ForkedProcess:
        """Process of the entry."""


K = TypeVar("K")
E = TypeVar("E", bound=ProcessEntry)


class ProcessTable(dict[K, E], Generic[K, E]):
    """Entries of live processes by key; ended ones are tracked until their descendants have ended too."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: list[ForkedProcess] = []

    def signal(self, number: int, matches: Callable[[K], bool] = lambda _: True) -> None:
        """Send a signal to the processes whose key satisfies `matches`. Defaults to all."""
        for key, entry in list(self.items()):
            if matches(key):
                entry.process.signal(number)

    def reap(self, key: K, *, wait: bool = False) -> int:
        """Remove a process that has ended.

        Args:
            key: Key of the process.
            wait: Wait, 10 s at most, until its descendants have ended. Defaults to False; `close` waits.

        Returns:
            Its exit code, negative if a signal ended it.
        """
        process = self.pop(key).process
        code = process.join()
        if wait:
            process.close()
            return code
        for ended in [one for one in self._ended if one.is_swept()]:
            self._ended.remove(ended)
            ended.close(0.0)
        self._ended.append(process)
        return code

    def close(self) -> None:
        """End all processes, and wait until they and their descendants are gone."""
        self.signal(signal.SIGKILL)
        for process in [*(entry.process for entry in self.values()), *self._ended]:
            process.close()
        self.clear()
        self._ended = []
