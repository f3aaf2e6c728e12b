"""Protocol of lines from a rank to its parent, as JSON: messages for the user, and records."""

from __future__ import annotations

import sys

import msgspec

__all__ = ["LinePart", "LineReader", "Report", "Text", "parse_line", "write_line"]


class Text(msgspec.Struct, frozen=True, tag_field="wirewise", tag="log"):
    """A log line for the user."""

    text: str


class Report(msgspec.Struct, frozen=True, tag_field="wirewise", tag="record"):
    """Intermediate measurement of a rank."""

    record: msgspec.Raw
    """Record as JSON, of a type known to rank and parent."""


class LinePart(msgspec.Struct, frozen=True, tag_field="wirewise", tag="part"):
    """Part of a long line."""

    text: str
    last: bool


_START = '{"wirewise":'
_LONGEST_BYTES, _PART = 1000, 200
"""Slurm cuts lines after 1,024 bytes. So many letters of a line have fewer, whatever they are."""


def write_line(line: Text | Report) -> None:
    """Print a line for the parent, in parts if it is long."""
    encoded = msgspec.json.encode(line)
    if len(encoded) > _LONGEST_BYTES:
        text = encoded.decode()
        parts = [text[start : start + _PART] for start in range(0, len(text), _PART)]
        last = len(parts) - 1
        encoded = b"\n".join(msgspec.json.encode(LinePart(part, n == last)) for n, part in enumerate(parts))
    sys.stdout.write(encoded.decode() + "\n")
    sys.stdout.flush()


def parse_line(line: str) -> Text | Report | LinePart | None:
    """Parse a line that a rank printed for its parent; None for any other output."""
    if not line.startswith(_START):
        return None
    try:
        return msgspec.json.decode(line, type=Text | Report | LinePart)
    except msgspec.DecodeError:
        return None


class LineReader:
    """Reader of the lines of one rank; joins parts."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def read(self, line: str) -> Text | Report | None:
        """Parse a line of the rank; None for other output and for incomplete lines."""
        told = parse_line(line)
        if not isinstance(told, LinePart):
            return told
        self._parts.append(told.text)
        if not told.last:
            return None
        whole, self._parts = "".join(self._parts), []
        found = parse_line(whole)
        return None if isinstance(found, LinePart) else found
