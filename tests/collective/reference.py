"""Programs run on numbers in one process: what executors and exporters are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.program import Program
from wirewise.collective.relations import REDUCING
from wirewise.errors import InputError, ProgramError

__all__ = ["Buffers", "expected", "run", "spans"]

Array: TypeAlias = NDArray[Any]
Buffers: TypeAlias = list[Array | None]
"""A rank's blocks one after the other, in the order of their numbers; None: the rank has no block."""


def run(program: Program, inputs: Sequence[Array | None]) -> Buffers:
    """What each rank has after a program, step by step and in the order of its transfers.

    Args:
        program: Program to run.
        inputs: Blocks that each rank holds at the start, 1-D; None where it holds none. All blocks have the
            same number of elements.

    Returns:
        By rank, the blocks that it must hold at the end.

    Raises:
        InputError: Inputs of other lengths.
        ProgramError: A rank sends or ends without a chunk that it never got.
    """
    state = _chunks(program, _blocks(program, inputs))
    by_step = sorted(program.transfers, key=lambda t: t.step)
    for _, group in itertools.groupby(by_step, key=lambda t: t.step):
        sent = [(t, _held(program, state, t.source, t.chunk)) for t in group]
        for t, value in sent:
            own = state.get((t.target, t.chunk)) if t.reduces else None
            state[t.target, t.chunk] = value if own is None else own + value
    return _joined(program, lambda rank, chunk: _held(program, state, rank, chunk))


def expected(program: Program, inputs: Sequence[Array | None]) -> Buffers:
    """What each rank must have, by the meaning of the collective alone; arguments and errors as in `run`."""
    start = _chunks(program, _blocks(program, inputs))

    def whole(_: int, chunk: int) -> Array:
        parts = [start[rank, chunk] for rank in program.starts_at(chunk)]
        total: Array = np.sum(parts, axis=0, dtype=parts[0].dtype)
        return total if program.collective in REDUCING else parts[0]

    return _joined(program, whole)


def spans(program: Program, elements: int) -> list[tuple[int, int]]:
    """Where each chunk begins and ends in a block of so many elements."""
    each = program.chunks // program.blocks
    fractions, found = program.fractions(), list[tuple[int, int]]()
    for block in range(program.blocks):
        edges = [0.0, *itertools.accumulate(fractions[block * each : (block + 1) * each])]
        ends = [round(edge * elements) for edge in edges]
        found += itertools.pairwise(ends)
    return found


def _held(program: Program, state: dict[tuple[int, int], Array], rank: int, chunk: int) -> Array:
    if (rank, chunk) not in state:
        raise ProgramError(f"program {program.name!r}: rank {rank} needs chunk {chunk}, which it never got")
    return state[rank, chunk]


def _blocks(program: Program, inputs: Sequence[Array | None]) -> dict[tuple[int, int], Array]:
    """Arrays that ranks hold at the start, by rank and block."""
    if len(inputs) != program.ranks:
        raise InputError(f"got {len(inputs)} inputs; expected one for each of {program.ranks} ranks, or None")
    each = program.chunks // program.blocks
    held: dict[int, list[int]] = {}
    for block in range(program.blocks):
        for rank in program.starts_at(block * each):
            held.setdefault(rank, []).append(block)
    found = {}
    for rank, numbers in held.items():
        buffer = inputs[rank]
        if buffer is None or buffer.ndim != 1 or len(buffer) % len(numbers):
            got = "nothing" if buffer is None else f"shape {buffer.shape}"
            raise InputError(
                f"got {got} from rank {rank}; expected 1-D, a multiple of its {len(numbers)} blocks"
            )
        found.update(
            {(rank, b): part for b, part in zip(numbers, np.split(buffer, len(numbers)), strict=True)}
        )
    sizes = {len(part) for part in found.values()}
    if len(sizes) > 1:
        raise InputError(f"got blocks of {sorted(sizes)} elements; expected the same at all ranks")
    return found


def _chunks(program: Program, blocks: dict[tuple[int, int], Array]) -> dict[tuple[int, int], Array]:
    each = program.chunks // program.blocks
    places = spans(program, len(next(iter(blocks.values()))))
    return {
        (rank, chunk): part[slice(*places[chunk])]
        for (rank, block), part in blocks.items()
        for chunk in range(block * each, (block + 1) * each)
    }


def _joined(program: Program, value: Callable[[int, int], Array]) -> Buffers:
    parts: list[list[Array]] = [[] for _ in range(program.ranks)]
    for chunk in range(program.chunks):
        for rank in program.ends_at(chunk):
            parts[rank].append(value(rank, chunk))
    return [np.concatenate(found) if found else None for found in parts]
