"""The environment in which an unmodified command runs functions of ours in each of its ranks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from wirewise import profile
from wirewise.errors import InputError

__all__ = [
    "TRACE_VARIABLE",
    "TraceWish",
    "environment",
    "find_program",
    "last_words",
    "tracing_environment",
]

TRACE_VARIABLE = "WIREWISE_TRACE"
_TRACE_ENTRY = "wirewise.profile.unmodified:install"
_TORCHRUN = "torch/distributed/elastic/multiprocessing/api.py"
"""In the first line that torchrun writes once a rank has failed."""


class TraceWish(msgspec.Struct, frozen=True, kw_only=True):
    """What to record of an unmodified script; fields as of `profile.Tracer`."""

    folder: str
    warmup: int = 5
    steps: int | None = 30
    every: int = 1
    stop: bool = False
    """End the job when all steps are recorded, instead of letting it train on."""


def environment(
    entries: Mapping[str, Mapping[str, str]] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment variables with which every rank of a command calls functions once it has imported torch.

    Args:
        entries: For each function, as "module:function", the variables that it reads.
        base: Variables to go on from; none: those of this process.
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


def tracing_environment(wish: TraceWish, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`environment` with which every rank of a command records itself."""
    return environment({_TRACE_ENTRY: {TRACE_VARIABLE: msgspec.json.encode(wish).decode()}}, base)


def find_program(name: str) -> str:
    """File of a program; torchrun and python are those beside this interpreter where the path has none.

    Raises:
        InputError: There is none.
    """
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise InputError(f"there is no program {name!r}; expected a command such as torchrun train.py")
    return found


def last_words(log: Path, lines: int = 15) -> str:
    """The last lines that the ranks of a command wrote, without those of torchrun about them."""
    said = log.read_text(errors="replace").splitlines()
    ended = next((number for number, line in enumerate(said) if _TORCHRUN in line), 0)
    return "\n".join(said[: ended or None][-lines:])
