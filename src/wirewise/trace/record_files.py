"""JSON files of records: errors name the file, writes are atomic."""

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


def amount_faults(label: str, value: float) -> Iterator[str]:
    """Fault of a value that is negative or not finite; `label` names the value in the message."""
    if not isfinite(value) or value < 0:
        yield f"{label} is {value}; expected a finite figure of at least 0"


def read_record(path: str | os.PathLike[str], kind: type[R], label: str) -> R:
    """Read a JSON file whose keys are the fields of a record.

    Args:
        path: File to read.
        kind: Type of the record.
        label: Description of the contents, for the message.

    Raises:
        InputError: The file cannot be read or is malformed; the message names the file and the place.
    """
    try:
        return decode_json(Path(path).read_bytes(), kind)
    except (OSError, msgspec.MsgspecError, InputError) as cause:
        raise InputError(f"cannot read {label} from {os.fspath(path)}: {cause}; check the file") from cause


def write_record(record: Any, path: str | os.PathLike[str]) -> None:
    """Write a record atomically; `read_record` reads it.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    with atomic_file(path) as file:
        file.write(msgspec.json.encode(record))
