"""Records in JSON files of their own: errors name the file, files are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.files import atomic_file

__all__ = ["amount_faults", "read_record", "write_record"]

R = TypeVar("R")


def amount_faults(what: str, value: float) -> Iterator[str]:
    """The fault of a figure that is negative or not finite, if it is; `what` names the figure and its place."""
    if not isfinite(value) or value < 0:
        yield f"{what} is {value}; expected a finite figure of at least 0"


def read_record(path: str | os.PathLike[str], kind: type[R], what: str) -> R:
    """Read a JSON file whose keys are the fields of a record.

    Args:
        path: File to read.
        kind: Type of the record.
        what: Words for what the file holds, for the message.

    Raises:
        InputError: The file cannot be read, or holds something else; the message names the file and the place.
    """
    try:
        return decode_json(Path(path).read_bytes(), kind)
    except (OSError, msgspec.MsgspecError, InputError) as cause:
        raise InputError(f"cannot read {what} from {os.fspath(path)}: {cause}; check the file") from cause


def write_record(record: Any, path: str | os.PathLike[str]) -> None:
    """Write what `read_record` reads, at once or not at all.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    with atomic_file(path) as file:
        file.write(msgspec.json.encode(record))
