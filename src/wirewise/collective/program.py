"""A collective algorithm as data: which chunk goes from which rank to which, in which step.

Semantics. Each rank holds at most one value of each chunk. A transfer of step k sends its source's value of the chunk
after all steps below k, and the target adds it to its own value or replaces that. All transfers of a step therefore
read before any of them writes. Nothing else orders them: there is no barrier between steps, and a transfer may run as
soon as those writes are done at its source, and those reads and earlier writes at its target. Transfers of one step
between the same two ranks are one message. Each segment of the chunks runs through the program independently.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec

from wirewise.collective.relations import COLLECTIVES, ROOTED, Collective, blocks, contributors, receivers
from wirewise.decoding import decode_json
from wirewise.errors import ProgramError
from wirewise.files import atomic_file, read_file

__all__ = ["Message", "Program", "Transfer", "load", "loads", "save"]


_MOST_RANKS = 1 << 16
"""More than any machine has; what is made for each rank then stays small."""
_MOST_CHUNKS = 1 << 24
"""Enough for an all-to-all of 4096 ranks."""


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Transfer of one chunk from one rank to another."""

    chunk: int
    source: int
    target: int
    step: int
    reduces: bool = False
    """Whether the target reduces it into its own value instead of replacing that."""


class Message(NamedTuple):
    """Transfers of one step between the same two ranks."""

    step: int
    source: int
    target: int
    transfers: tuple[Transfer, ...]


class Program(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="program",
    tag_field="kind",
    dict=True,
):
    """Collective algorithm for a number of ranks; see the module for its semantics.

    Raises:
        ProgramError: A rank, chunk, step or fraction is out of range; the message names the place.
    """

    name: str
    """Name of the algorithm, such as "ring"."""
    collective: Collective
    ranks: int
    """Ranks of the topology."""
    chunks: int
    """A multiple of the collective's blocks. Chunks of a block follow each other."""
    transfers: tuple[Transfer, ...]
    root: int = 0
    """Rank of a rooted collective."""
    members: tuple[int, ...] = ()
    """Ranks of the group, ascending; empty for all. Other ranks only relay."""
    shares: tuple[float, ...] = ()
    """Relative size of each chunk within its block; empty for equal sizes."""
    segments: int = 1
    """Number of segments of each chunk that are pipelined through the program."""

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ProgramError(f"program {self.name!r}: {fault}")

    @cached_property
    def group(self) -> tuple[int, ...]:
        """Participating ranks."""
        return self.members or tuple(range(self.ranks))

    @property
    def blocks(self) -> int:
        """Number of blocks; see `relations.blocks`."""
        return blocks(self.collective, len(self.group))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return max((transfer.step for transfer in self.transfers), default=-1) + 1

    def block_of(self, chunk: int) -> int:
        """Block that contains a chunk."""
        return chunk * self.blocks // self.chunks

    def starts_at(self, chunk: int) -> tuple[int, ...]:
        """Ranks that hold the chunk, or a partial sum of it, at the start."""
        found = contributors(self.collective, self.block_of(chunk), len(self.group), self._root_place)
        return tuple(self.group[place] for place in found)

    def ends_at(self, chunk: int) -> tuple[int, ...]:
        """Ranks that must hold the chunk complete at the end."""
        found = receivers(self.collective, self.block_of(chunk), len(self.group), self._root_place)
        return tuple(self.group[place] for place in found)

    def messages(self) -> list[Message]:
        """Transfers by step and pair of ranks, in the order of steps."""
        ordered = sorted(self.transfers, key=lambda t: (t.step, t.source, t.target, t.chunk))
        groups = itertools.groupby(ordered, key=lambda t: (t.step, t.source, t.target))
        return [Message(*key, tuple(found)) for key, found in groups]

    def fractions(self) -> list[float]:
        """Size of each chunk, as a fraction of its block."""
        each = self.chunks // self.blocks
        if not self.shares:
            return [1 / each] * self.chunks
        sums = [math.fsum(self.shares[b * each : (b + 1) * each]) for b in range(self.blocks)]
        return [share / sums[chunk // each] for chunk, share in enumerate(self.shares)]

    def chunk_bytes(self, size_bytes: float) -> list[float]:
        """Size of each chunk in bytes, if the larger buffer of a rank, in or out, has `size_bytes`."""
        in_buffer = len(self.group) if self.collective == "all_to_all" else self.blocks
        return [fraction * size_bytes / in_buffer for fraction in self.fractions()]

    @property
    def _root_place(self) -> int:
        return self.group.index(self.root) if self.collective in ROOTED else 0

    def to_json(self) -> str:
        """The program as JSON text; `loads` reads it back equal."""
        return msgspec.json.encode(self).decode()


def loads(text: str | bytes) -> Program:
    """Read a program from JSON.

    Raises:
        ProgramError: The text is not JSON, another kind of record, or has a value out of range; the message names the
            path.
    """
    try:
        return decode_json(text, Program)
    except msgspec.DecodeError as error:
        raise ProgramError(
            f"cannot read a program: {error}; expected JSON written by `wirewise.collective.save`, make it again"
        ) from error


def load(path: str | os.PathLike[str]) -> Program:
    """Read a program file.

    Raises:
        InputError: The file cannot be read.
        ProgramError: Raised by `loads`; the message names the file too.
    """
    return read_file(path, "program file", loads)


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program file atomically.

    Raises:
        InputError: The folder is missing, not writable or full; an older file at `path` is left intact.
    """
    with atomic_file(path) as file:
        file.write(program.to_json().encode())


def _faults(program: Program) -> Iterator[str]:
    for name, count, most in (
        ("ranks", program.ranks, _MOST_RANKS),
        ("chunks", program.chunks, _MOST_CHUNKS),
    ):
        if not 1 <= count <= most:
            yield f"got {count} {name}; expected 1 to {most}"
    if program.collective not in COLLECTIVES:
        yield f"got the collective {program.collective!r}; expected one of {', '.join(COLLECTIVES)}"
    yield from _group_faults(program)
    if program.chunks % program.blocks:
        yield (
            f"got {program.chunks} chunks; expected a multiple of the {program.blocks} blocks of "
            f"{program.collective} among {len(program.group)} ranks"
        )
    if program.segments < 1:
        yield f"got {program.segments} segments; expected at least 1"
    yield from _share_faults(program)
    yield from _transfer_faults(program)


def _group_faults(program: Program) -> Iterator[str]:
    if list(program.members) != sorted({m for m in program.members if 0 <= m < program.ranks}):
        yield f"got members {program.members}; expected ascending ranks from 0 to {program.ranks - 1}"
    if program.collective in ROOTED and program.root not in program.group:
        known = program.members or f"0 to {program.ranks - 1}"
        yield f"got the root {program.root}; expected a rank of the group, {known}"


_MOST_RATIO = 1e9


def _share_faults(program: Program) -> Iterator[str]:
    if program.shares and len(program.shares) != program.chunks:
        yield f"got {len(program.shares)} shares; expected one for each of {program.chunks} chunks, or none"
    if not all(math.isfinite(share) and share > 0 for share in program.shares):
        yield "got a share that is not above 0; leave out chunks without data"
    elif program.shares and max(program.shares) > _MOST_RATIO * min(program.shares):
        yield (
            f"got shares of {min(program.shares):g} to {max(program.shares):g}; expected at most {_MOST_RATIO:g} times "
            "the smallest, whose chunk would have no byte"
        )


def _transfer_faults(program: Program) -> Iterator[str]:
    for number, t in enumerate(program.transfers):
        if not (
            0 <= t.chunk < program.chunks and 0 <= t.source < program.ranks and 0 <= t.target < program.ranks
        ):
            yield (
                f"transfers[{number}] is chunk {t.chunk} from rank {t.source} to {t.target}; expected chunks below "
                f"{program.chunks} and ranks below {program.ranks}"
            )
        if t.source == t.target or t.step < 0:
            yield (
                f"transfers[{number}] goes from rank {t.source} to {t.target} in step {t.step}; expected two "
                "different ranks and a step of at least 0"
            )
