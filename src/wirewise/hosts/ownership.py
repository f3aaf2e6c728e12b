"""Names of things on this host that belong to a process, so that what a killed owner left can be told from the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

__all__ = ["OwnedName", "owner_is_gone", "owner_tag"]

_TAG = re.compile(r"(\d+)-(\d+)-(\d+)(?!\d)")


class OwnedName(NamedTuple):
    """Owner that a name carries."""

    pid: int
    start_ticks: int
    """Start time in clock ticks: process ids are given again."""
    pid_namespace: int
    """Inode of its process namespace: ids of another container mean nothing here, though it shares the folder."""

    @classmethod
    def of_this_process(cls) -> Self:
        """The name of this process."""
        pid = os.getpid()
        return cls(pid, _start_ticks(pid) or 0, _pid_namespace())

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Owner at the start of a text; None if it has none."""
        match = _TAG.match(text)
        return None if match is None else cls(*(int(part) for part in match.groups()))

    @property
    def is_gone(self) -> bool:
        """Whether the owner provably lives no more; False for one of another process namespace."""
        return self.pid_namespace == _pid_namespace() and _start_ticks(self.pid) != self.start_ticks

    def __str__(self) -> str:
        return f"{self.pid}-{self.start_ticks}-{self.pid_namespace}"


def owner_tag() -> str:
    """Tag of this process for names that it owns: process id, start time in clock ticks, process namespace."""
    return str(OwnedName.of_this_process())


def owner_is_gone(name: str, prefix: str) -> bool:
    """Whether a name has a prefix followed by the tag of a process of this namespace that lives no more."""
    owner = OwnedName.parse(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return owner is not None and owner.is_gone


def stale(folder: Path, prefix: str) -> Iterator[Path]:
    """Entries of a folder whose owner is gone."""
    for path in sorted(folder.glob(f"{prefix}*")):
        if owner_is_gone(path.name, prefix):
            yield path


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_ticks(pid: int) -> int | None:
    try:
        # The command in parentheses may hold spaces; the state is the field after it, the start time 19 fields later.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
