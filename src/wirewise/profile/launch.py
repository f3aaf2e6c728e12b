"""Environment in which an unmodified command runs our functions in each of its ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from wirewise import profile

__all__ = ["FOLLOW_SPAWNED", "environment"]

FOLLOW_SPAWNED = "WIREWISE_FOLLOW_SPAWNED"
"""Environment variable with which functions also run in processes that the command's multiprocessing starts."""


def environment(
    entries: Mapping[str, Mapping[str, str]] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment variables by which every rank of a command calls functions once it has imported torch.

    Args:
        entries: Variables that each function reads, by "module:function".
        base: Variables to extend. Defaults to those of this process.
    """
    found = dict(os.environ if base is None else base)
    folder = str(Path(profile.__path__[0]) / "startup")
    # The package of a checkout is found by its folder, also from where the command runs.
    parts = [
        folder,
        str(Path(profile.__path__[0]).parents[1]),
        *found.get("PYTHONPATH", "").split(os.pathsep),
    ]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, parts)))
    names = [*found.get("WIREWISE_STARTUP", "").split(","), *(entries or {})]
    found["WIREWISE_STARTUP"] = ",".join(dict.fromkeys(filter(None, names)))
    for variables in (entries or {}).values():
        found |= variables
    return found
