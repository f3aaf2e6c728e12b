"""Buffer in which each rank keeps each chunk of a program: input, output or scratch."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from wirewise.collective.exporters.msccl.model import Place
from wirewise.collective.program import Program
from wirewise.errors import ProgramError

__all__ = ["Layout"]

_VECTOR = ("broadcast", "reduce", "all_reduce")
"""Collectives whose buffers are one block, in and out."""
_KNOWN = (*_VECTOR, "all_gather", "reduce_scatter", "all_to_all")
_MOST_UNITS = 64
"""Units of a block at most where shares are no simple fractions."""


class Layout:
    """Buffer positions of a program's chunks.

    A rank's own value is read from its input; what it receives goes to its output if the collective asks for the
    chunk there, else to scratch. The input is therefore never written; the first sum is formed from the input into
    the other buffer. In place, a chunk that a rank both starts and ends with is kept once, in the output.

    Args:
        program: Program to lay out.
        in_place: Whether input and output share memory.

    Raises:
        ProgramError: MSCCL has no such collective, no such group, or the collective does not work in place.
    """

    def __init__(self, program: Program, in_place: bool) -> None:
        _refuse(program, in_place)
        self.program, self.in_place = program, in_place
        self.units = _units(program)
        self._receives = {(t.target, t.chunk) for t in program.transfers}
        self._ends = {(r, chunk) for chunk in range(program.chunks) for r in program.ends_at(chunk)}
        self._starts = {(r, chunk) for chunk in range(program.chunks) for r in program.starts_at(chunk)}
        self.scratch: list[int] = [0] * program.ranks
        """Units of scratch memory, by rank."""
        self._scratch_place: dict[tuple[int, int], Place] = {}
        for rank, chunk in sorted(self._receives - self._ends):
            self._scratch_place[rank, chunk] = Place("s", self.scratch[rank])
            self.scratch[rank] += self.units.counts[chunk]

    @property
    def chunks_per_loop(self) -> int:
        """Units of the larger buffer of a rank."""
        blocks = 1 if self.program.collective in _VECTOR else self.program.ranks
        return blocks * self.units.per_block

    def start(self, rank: int, chunk: int) -> Place | None:
        """Position of the rank's own value. None if it has none."""
        if (rank, chunk) not in self._starts:
            return None
        if self.in_place and (rank, chunk) in self._ends:
            return self.home(rank, chunk)
        return Place("i", self._offset(chunk, self._input_block(chunk)))

    def home(self, rank: int, chunk: int) -> Place:
        """Position of what the rank receives, and of the final result."""
        if (rank, chunk) in self._ends:
            return Place("o", self._offset(chunk, self._output_block(chunk)))
        return self._scratch_place[rank, chunk]

    def to_copy(self, rank: int) -> list[int]:
        """Chunks that the rank must end with but never receives; they are copied from its input."""
        if self.in_place:
            return []
        kept = (self._starts & self._ends) - self._receives
        return sorted(chunk for r, chunk in kept if r == rank)

    def _offset(self, chunk: int, block: int) -> int:
        return block * self.units.per_block + self.units.first[chunk]

    def _input_block(self, chunk: int) -> int:
        block, ranks = self.program.block_of(chunk), self.program.ranks
        if self.program.collective == "all_to_all":
            return block % ranks
        return block if self.program.collective == "reduce_scatter" else 0

    def _output_block(self, chunk: int) -> int:
        block, ranks = self.program.block_of(chunk), self.program.ranks
        if self.program.collective == "all_to_all":
            return block // ranks
        return block if self.program.collective == "all_gather" else 0


def _refuse(program: Program, in_place: bool) -> None:
    if len(program.group) != program.ranks:
        raise ProgramError(
            f"program {program.name!r} is for the group {program.group} of {program.ranks} ranks; MSCCL knows "
            "no ranks outside the group: number the members anew, in a program without members"
        )
    if program.collective not in _KNOWN:
        raise ProgramError(
            f"program {program.name!r} is a {program.collective}; MSCCL has a call for {', '.join(_KNOWN)}: "
            "carry it out with wirewise.runtime.collective, or make it a part of one of those"
        )
    if in_place and program.collective == "all_to_all":
        raise ProgramError(
            "an all_to_all in place would write blocks before they are sent; export it out of place"
        )


class _Units(NamedTuple):
    """How chunks divide their blocks."""

    per_block: int
    first: tuple[int, ...]
    """First unit of each chunk within its block."""
    counts: tuple[int, ...]
    """Number of units of each chunk, at least 1."""


def _units(program: Program) -> _Units:
    """Divide each block into equal units such that each chunk is a whole number of them.

    Shares that are fractions with a common denominator up to 64 are kept; others are rounded to multiples of a
    64th of the block (of more, for blocks of more chunks), which moves bytes between chunks but stays correct.
    """
    each = program.chunks // program.blocks
    if not program.shares:
        return _Units(each, tuple(c % each for c in range(program.chunks)), (1,) * program.chunks)
    parts = program.fractions()
    blocks = [parts[b * each : (b + 1) * each] for b in range(program.blocks)]
    per_block = _denominator(parts)
    if per_block is None:
        per_block = max(_MOST_UNITS, 4 * each)
    counts = [count for block in blocks for count in _rounded(block, per_block)]
    first = [
        sum(counts[b * each : c]) for b in range(program.blocks) for c in range(b * each, (b + 1) * each)
    ]
    return _Units(per_block, tuple(first), tuple(counts))


def _denominator(parts: list[float]) -> int | None:
    simple = [Fraction(part).limit_denominator(_MOST_UNITS) for part in parts]
    common = math.lcm(*{part.denominator for part in simple})
    exact = all(abs(float(s) - part) < 1e-9 for s, part in zip(simple, parts, strict=True))
    return common if exact and common <= _MOST_UNITS else None


def _rounded(parts: list[float], total: int) -> list[int]:
    """Whole numbers of at least 1 with the given sum, nearest to the parts: largest remainders."""
    counts = [max(1, math.floor(part * total + 1e-9)) for part in parts]
    while sum(counts) != total:
        change = 1 if sum(counts) < total else -1
        movable = [n for n, count in enumerate(counts) if change > 0 or count > 1]
        counts[max(movable, key=lambda n: change * (parts[n] * total - counts[n]))] += change
    return counts
