"""Parameters split into pieces: how they are split, and how plans name the pieces.

The split depends on size alone, so that a piece's encoding does not depend on the groups of pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["PIECE_BLOCK", "Piece", "piece_name", "piece_of", "pieces", "splits_of"]

PIECE_BLOCK = 4096
"""Number of elements of which every piece but the last holds a multiple: blocks of 256, 512, ... elements with a scale
of their own are then the same with pieces as without."""


class Piece(NamedTuple):
    """Piece of a parameter, numbered in memory order."""

    parameter: str
    number: int


def splits_of(elements: Mapping[str, int], maximum: int) -> dict[str, int]:
    """Piece size of each parameter larger than `maximum`, in elements, by name.

    Uses the fewest pieces within the limit, about equal, rounded up to `PIECE_BLOCK`.

    Args:
        elements: Number of elements of each parameter.
        maximum: Maximum number of elements per piece, at least 1.
    """
    found = {}
    for name, own in elements.items():
        count = -(-own // maximum)
        size = -(-own // (count * PIECE_BLOCK)) * PIECE_BLOCK
        if size < own:
            found[name] = size
    return found


def pieces(parameter: str, elements: int, size: int) -> dict[str, tuple[int, int]]:
    """First element and end of each piece of a parameter, by piece name, in order."""
    starts = range(0, elements, size)
    return {piece_name(parameter, n): (begin, min(begin + size, elements)) for n, begin in enumerate(starts)}


def piece_name(parameter: str, number: int) -> str:
    """Name of a piece, as used in plans."""
    return f"{parameter}[{number}]"


def piece_of(name: str, splits: Mapping[str, int]) -> Piece | None:
    """Parse a piece name of a plan with these splits. None for a whole parameter."""
    parameter, _, rest = name.rpartition("[")
    number = rest[:-1]
    if parameter in splits and number.isdecimal() and name == piece_name(parameter, int(number)):
        return Piece(parameter, int(number))
    return None
