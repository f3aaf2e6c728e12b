"""Program prepared for one rank and one size: messages to send and receive, and their bytes."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import NamedTuple

from wirewise.collective import Program
from wirewise.errors import ProgramError
from wirewise.runtime.collective.acts import Acts, acts_of
from wirewise.runtime.collective.memory import Blocks, ChunkLayout, layout

__all__ = ["Cache", "PreparedRun"]

_KEPT = 256


class PreparedRun(NamedTuple):
    """Prepared program; see the module."""

    program: Program
    acts: Acts
    layout: ChunkLayout
    sizes: tuple[tuple[int, ...], ...]
    """Bytes of each act in each segment, `[segment][act]`."""
    missing: Counter[int]
    """Number of messages still to be received from each peer."""
    unsent: Counter[int]
    """Number of messages still to be sent to each peer."""
    incoming_bytes: Counter[int]
    outgoing_bytes: Counter[int]
    fingerprint: int
    """16-bit hash that differs between incompatible operations."""


class Cache:
    """Cache of prepared programs on this rank; the oldest is evicted.

    Args:
        rank: Rank of this process.
        ranks: Size of the group.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._found: dict[tuple, PreparedRun] = {}

    def get(
        self, program: Program, blocks: Blocks, reduction: str, segments: int | None, deterministic: bool
    ) -> PreparedRun:
        """Prepare a program, or return it from the cache.

        Raises:
            ProgramError: The program was made for another number of ranks.
        """
        sizes = tuple(blocks.elements.items())
        key = (id(program), sizes, blocks.dtype, reduction, segments, deterministic)
        found = self._found.get(key)
        # The identity of a program that is gone may be that of another one.
        if found is None or found.program is not program:
            if program.ranks != self._ranks:
                raise ProgramError(
                    f"program {program.name!r} is for {program.ranks} ranks and the group has {self._ranks}; "
                    "make one for this group"
                )
            found = self._found[key] = _prepare(
                program, self._rank, blocks, reduction, segments, deterministic
            )
            if len(self._found) > _KEPT:
                del self._found[next(iter(self._found))]
        return found


def _prepare(
    program: Program, rank: int, blocks: Blocks, reduction: str, segments: int | None, deterministic: bool
) -> PreparedRun:
    acts = acts_of(program, rank, deterministic=deterministic)
    places = layout(program, blocks, segments)
    unknown = {chunk for act in acts.acts for chunk in act.chunks} - places.bounds.keys()
    if unknown:
        raise ProgramError(
            f"program {program.name!r} passes block {program.block_of(min(unknown))} on through rank {rank}, which "
            "does not know its size; use a program in which blocks of different sizes go straight to their targets"
        )
    sizes = tuple(
        tuple(places.size_bytes(act.chunks, segment) for act in acts.acts)
        for segment in range(places.segments)
    )
    counters = [Counter[int]() for _ in range(4)]
    for number, act in enumerate(acts.acts):
        found = [row[number] for row in sizes if row[number]]
        counters[act.sends][act.peer] += len(found)
        counters[2 + act.sends][act.peer] += sum(found)
    marks = (
        program.name, program.collective, program.chunks, program.root, program.group, len(program.transfers),
        places.segments, str(blocks.dtype), reduction, sum(blocks.elements.values()) if blocks.even else 0,
    )  # fmt: skip
    return PreparedRun(
        program, acts, places, sizes, counters[0], counters[1], counters[2], counters[3],
        zlib.crc32(repr(marks).encode()) & 0xFFFF,
    )  # fmt: skip
