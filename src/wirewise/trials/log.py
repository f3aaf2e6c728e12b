"""Lines that a rank prints for its parent, as JSON: texts for the user, and records."""

from __future__ import annotations

import sys

import msgspec

__all__ = ["Report", "Text", "parse_line", "write_line"]


class Text(msgspec.Struct, frozen=True, tag_field="wirewise", tag="log"):
    """A log line for the user."""

    text: str


class Report(msgspec.Struct, frozen=True, tag_field="wirewise", tag="record"):
    """Something that a rank measured meanwhile."""

    record: msgspec.Raw
    """JSON, of a type that rank and parent know."""


_START = '{"wirewise":'


def write_line(line: Text | Report) -> None:
    """Print a line for the parent."""
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def parse_line(line: str) -> Text | Report | None:
    """What a rank told its parent; None for any other output."""
    if not line.startswith(_START):
        return None
    try:
        return msgspec.json.decode(line, type=Text | Report)
    except msgspec.DecodeError:
        return None
