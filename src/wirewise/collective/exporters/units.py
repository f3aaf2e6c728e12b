"""Chunks of a program as whole numbers of units of one size: what formats with equal chunks need."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from wirewise.collective.program import Program
from wirewise.errors import ProgramError

__all__ = ["Units", "units", "whole_group"]

_MOST = 64
"""Units of a block at most where shares are no simple fractions."""


class Units(NamedTuple):
    """How chunks divide their blocks."""

    per_block: int
    first: tuple[int, ...]
    """First unit of each chunk within its block."""
    counts: tuple[int, ...]
    """Number of units of each chunk, at least 1."""


def units(program: Program) -> Units:
    """Divide each block into equal units such that each chunk is a whole number of them.

    Shares that are fractions with a common denominator up to 64 are kept; others are rounded to multiples of a
    64th of the block (of more, for blocks of more chunks), which moves bytes between chunks but stays correct.
    """
    each = program.chunks // program.blocks
    if not program.shares:
        return Units(each, tuple(c % each for c in range(program.chunks)), (1,) * program.chunks)
    parts = program.fractions()
    blocks = [parts[b * each : (b + 1) * each] for b in range(program.blocks)]
    per_block = _denominator(parts)
    if per_block is None:
        per_block = max(_MOST, 4 * each)
    counts = [count for block in blocks for count in _rounded(block, per_block)]
    first = [
        sum(counts[b * each : c]) for b in range(program.blocks) for c in range(b * each, (b + 1) * each)
    ]
    return Units(per_block, tuple(first), tuple(counts))


def whole_group(program: Program, form: str) -> None:
    """Raise if the group is only a part of the ranks.

    Raises:
        ProgramError: `form` has no ranks that only relay.
    """
    if len(program.group) != program.ranks:
        raise ProgramError(
            f"program {program.name!r} is for the group {program.group} of {program.ranks} ranks; {form} knows "
            "no ranks outside the group: number the members anew, in a program without members"
        )


def _denominator(parts: list[float]) -> int | None:
    simple = [Fraction(part).limit_denominator(_MOST) for part in parts]
    common = math.lcm(*{part.denominator for part in simple})
    exact = all(abs(float(s) - part) < 1e-9 for s, part in zip(simple, parts, strict=True))
    return common if exact and common <= _MOST else None


def _rounded(parts: list[float], total: int) -> list[int]:
    """Whole numbers of at least 1 with the given sum, nearest to the parts: largest remainders."""
    counts = [max(1, math.floor(part * total + 1e-9)) for part in parts]
    while sum(counts) != total:
        change = 1 if sum(counts) < total else -1
        movable = [n for n, count in enumerate(counts) if change > 0 or count > 1]
        counts[max(movable, key=lambda n: change * (parts[n] * total - counts[n]))] += change
    return counts
