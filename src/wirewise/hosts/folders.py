"""Private folders that are removed with the process that created them, however it ends."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from wirewise.hosts.ownership import owner_tag, stale

__all__ = ["MEMORY", "OwnedFolder", "remove_all_stale", "remove_stale"]

MEMORY = Path("/dev/shm")
"""Folder whose files stay in memory."""
_KIND = re.compile(r"wirewise-[a-z]+-")

_REMOVE = 'read -r _; rm -rf "$1"'


class OwnedFolder:
    """Folder in a shared place such as /dev/shm, with mode 0700 and an unguessable name.

    A shell removes it when this process ends; if the shell was killed too, the next owner in the same place does.

    Args:
        place: Folder of the new folder.
        prefix: Start of its name.

    Attributes:
        path: Path of the folder on this host.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, place: Path, prefix: str) -> None:
        remove_stale(place, prefix)
        self.path = place / f"{prefix}{owner_tag()}-{secrets.token_hex(8)}"
        self.path.mkdir(mode=0o700)
        # Its input ends with this process; Ctrl-C does not reach its session.
        self._remover = subprocess.Popen(
            ["sh", "-c", _REMOVE, "sh", str(self.path)], stdin=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder; safe to call twice."""
        self._remover.communicate()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_stale(folder: Path, prefix: str) -> list[str]:
    """Remove folders whose owner is dead; returns their names."""
    left = list(stale(folder, prefix))
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in left if not path.exists()]


def remove_all_stale() -> list[str]:
    """Remove folders left by killed processes in shared memory and among temporary files; returns the paths."""
    removed = []
    for place in (MEMORY, Path(tempfile.gettempdir())):
        kinds = {match[0] for path in place.glob("wirewise-*") if (match := _KIND.match(path.name))}
        removed += [str(place / name) for kind in sorted(kinds) for name in remove_stale(place, kind)]
    return removed
