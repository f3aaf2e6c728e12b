"""Unique process identities, and names that carry their owner, so that leftovers of killed processes can be removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from wirewise.hosts.processes import signal_process, start_ticks

__all__ = ["ProcessIdentity", "owner_is_gone", "owner_tag"]

_TAG = re.compile(r"(\d+)-(\d+)-(\d+)(?!\d)")


class ProcessIdentity(NamedTuple):
    """Process identity that is never reused; its text form is part of the names of resources the process owns."""

    pid: int
    start_ticks: int
    """Start time in clock ticks, because process ids are reused."""
    pid_namespace: int
    """Inode of its PID namespace: containers that share a folder have different ids."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Identity of a live process of this host. None if it has ended."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, _pid_namespace())

    @classmethod
    def of_this_process(cls) -> Self:
        """Identity of this process."""
        pid = os.getpid()
        return cls(pid, start_ticks(pid) or 0, _pid_namespace())

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the identity at the start of a text. None if there is none."""
        match = _TAG.match(text)
        return None if match is None else cls(*(int(part) for part in match.groups()))

    @property
    def is_gone(self) -> bool:
        """Whether the process is provably dead; False for one of another PID namespace."""
        return self.pid_namespace == _pid_namespace() and start_ticks(self.pid) != self.start_ticks

    def signal(self, number: int) -> bool:
        """Send a signal to the process; returns whether it was alive, and of this PID namespace."""
        if self.pid_namespace != _pid_namespace():
            return False
        return signal_process(self.pid, number, lambda pid: start_ticks(pid) == self.start_ticks)

    def __str__(self) -> str:
        return f"{self.pid}-{self.start_ticks}-{self.pid_namespace}"


def owner_tag() -> str:
    """Tag of this process for resource names: process id, start time in clock ticks, PID namespace."""
    return str(ProcessIdentity.of_this_process())


def owner_is_gone(name: str, prefix: str) -> bool:
    """Whether a name is a prefix followed by the tag of a dead process of this PID namespace."""
    owner = ProcessIdentity.parse(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return owner is not None and owner.is_gone


def stale(folder: Path, prefix: str) -> Iterator[Path]:
    """Entries of a folder whose owner is dead."""
    for path in sorted(folder.glob(f"{prefix}*")):
        if owner_is_gone(path.name, prefix):
            yield path


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
