"""Parameters that travel in pieces: how they are cut, and what plans call the pieces.

Size alone decides, so what a codec makes of a piece does not depend on the groups that pieces travel in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["PIECE_BLOCK", "Piece", "piece_name", "piece_of", "pieces", "splits_of"]

PIECE_BLOCK = 4096
"""Every piece but the last holds a multiple of so many elements: blocks of 256, 512, ... elements that have a scale of
their own are then the same with pieces as without."""


class Piece(NamedTuple):
    """A piece of a parameter, numbered in the order of memory."""

    parameter: str
    number: int


def splits_of(elements: Mapping[str, int], most: int) -> dict[str, int]:
    """Elements of a piece of each parameter that is larger than `most`, by name.

    As few pieces as can be of at most so many elements, about equal, rounded up to `PIECE_BLOCK`.

    Args:
        elements: Elements of each parameter.
        most: Elements, at least 1.
    """
    found = {}
    for name, own in elements.items():
        count = -(-own // most)
        size = -(-own // (count * PIECE_BLOCK)) * PIECE_BLOCK
        if size < own:
            found[name] = size
    return found


def pieces(parameter: str, elements: int, size: int) -> dict[str, tuple[int, int]]:
    """First element and end of each piece of a parameter, by the piece's name, in order."""
    starts = range(0, elements, size)
    return {piece_name(parameter, n): (begin, min(begin + size, elements)) for n, begin in enumerate(starts)}


def piece_name(parameter: str, number: int) -> str:
    """What plans call a piece."""
    return f"{parameter}[{number}]"


def piece_of(name: str, splits: Mapping[str, int]) -> Piece | None:
    """The piece that a plan with these splits means by a name; None: a whole parameter."""
    parameter, _, rest = name.rpartition("[")
    number = rest[:-1]
    if parameter in splits and number.isdecimal() and name == piece_name(parameter, int(number)):
        return Piece(parameter, int(number))
    return None
