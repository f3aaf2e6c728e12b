"""Lines that a rank prints for its parent, as JSON: texts for the user, and records."""

from __future__ import annotations

import sys

import msgspec

__all__ = ["LinePart", "LineReader", "Report", "Text", "parse_line", "write_line"]


class Text(msgspec.Struct, frozen=True, tag_field="wirewise", tag="log"):
    """A log line for the user."""

    text: str


class Report(msgspec.Struct, frozen=True, tag_field="wirewise", tag="record"):
    """Something that a rank measured meanwhile."""

    record: msgspec.Raw
    """JSON, of a type that rank and parent know."""


class LinePart(msgspec.Struct, frozen=True, tag_field="wirewise", tag="part"):
    """A part of a line that is too long for one."""

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
    """What a rank told its parent in one line; None for any other output."""
    if not line.startswith(_START):
        return None
    try:
        return msgspec.json.decode(line, type=Text | Report | LinePart)
    except msgspec.DecodeError:
        return None


class LineReader:
    """Reads the lines of one rank, and puts parts together."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def read(self, line: str) -> Text | Report | None:
        """What the rank told; None for any other output, and until a line is whole."""
        told = parse_line(line)
        if not isinstance(told, LinePart):
            return told
        self._parts.append(told.text)
        if not told.last:
            return None
        whole, self._parts = "".join(self._parts), []
        found = parse_line(whole)
        return None if isinstance(found, LinePart) else found
