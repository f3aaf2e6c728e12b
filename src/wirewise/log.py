"""Loggers of wirewise, one per room: `wirewise.recovery`, `wirewise.graph`, ...

Each record has `rank`, `step` and `generation` as attributes, None if unknown, for custom handlers and formatters.
INFO is for changes of state (a rank lost, a plan swapped, a group joined), DEBUG for phases. Nothing is printed
unless the program configures logging, or the variable WIREWISE_LOG sets a level.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import MutableMapping
from typing import Any

from wirewise.errors import InputError

__all__ = ["LEVEL", "RoomLogger", "configure", "logger", "set_position"]

LEVEL = "WIREWISE_LOG"
"""Environment variable with a level for all rooms, or levels by room: "debug", "info,recovery=debug"."""

_LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)-5s %(name)s [rank %(rank)s, step %(step)s, generation %(generation)s] %(message)s"
_position: dict[str, int | None] = {"step": None, "generation": None}
_root = logging.getLogger("wirewise")
_root.addHandler(logging.NullHandler())


class RoomLogger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Logger whose records carry rank, step and generation."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the position of this process to a record."""
        kwargs["extra"] = {"rank": _rank(), **_position, **(kwargs.get("extra") or {})}
        return msg, kwargs


def logger(name: str) -> RoomLogger:
    """Get the logger of a room, such as "recovery" for `wirewise.recovery`."""
    return RoomLogger(logging.getLogger(f"wirewise.{name}"), {})


def set_position(*, step: int | None = None, generation: int | None = None) -> None:
    """Set the position of this process for its log records; omitted values are kept.

    Args:
        step: Current step, update or epoch.
        generation: Number of the current process group, counted from 1.
    """
    if step is not None:
        _position["step"] = step
    if generation is not None:
        _position["generation"] = generation


def configure(levels: str | None = None) -> None:
    """Print log records to stderr.

    Args:
        levels: Level, and levels of rooms, in the format of the variable WIREWISE_LOG. Defaults to that variable;
            nothing changes if it is not set.

    Raises:
        InputError: A level is unknown; the message names it.
    """
    text = os.environ.get(LEVEL, "") if levels is None else levels
    if not text:
        return
    found: dict[str, int] = {}
    for part in text.split(","):
        room, equals, level = part.strip().rpartition("=")
        if level.lower() not in _LEVELS or bool(room) != bool(equals):
            raise InputError(
                f"{LEVEL} is {text!r}; expected a level of {', '.join(_LEVELS)}, or ROOM=LEVEL, separated by commas"
            )
        found[room] = getattr(logging, level.upper())
    if not any(isinstance(one, _Printer) for one in _root.handlers):
        _root.addHandler(_Printer())
        _root.propagate = False
    _root.setLevel(found.pop("", logging.WARNING))
    for room, number in found.items():
        logging.getLogger(f"wirewise.{room}").setLevel(number)


class _Printer(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to what sys.stderr is now: launchers and tests replace it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter(_FORMAT, defaults={"rank": None, **_position}))

    @property
    def stream(self) -> Any:
        """Standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        pass


def _rank() -> int | None:
    """Rank in torch's default group, or that which the launcher has set."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank: int = distributed.get_rank()
        return rank
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


try:
    configure()
except InputError as error:
    # A training does not end for it; commands refuse it.
    warnings.warn(str(error), RuntimeWarning, stacklevel=2)
