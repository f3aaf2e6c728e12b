"""Where the chunks of a program lie in tensors, and the buffers of messages that cannot be put there yet."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from wirewise.collective import Program
from wirewise.runtime.collective.acts import Acts

__all__ = [
    "LEAST_SEGMENT_BYTES",
    "REDUCTIONS",
    "Blocks",
    "ChunkLayout",
    "Memory",
    "Pool",
    "Scratch",
    "copies_back",
    "layout",
]

LEAST_SEGMENT_BYTES = 16_384
"""Smaller segments cost more for their messages than they gain by overlap."""
_KEPT_BYTES = 1 << 26
_SMALLEST = 4096

REDUCTIONS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum": Tensor.add_,
    "avg": Tensor.add_,
    "product": Tensor.mul_,
    "min": lambda own, other: torch.minimum(own, other, out=own),
    "max": lambda own, other: torch.maximum(own, other, out=own),
    "band": Tensor.bitwise_and_,
    "bor": Tensor.bitwise_or_,
    "bxor": Tensor.bitwise_xor_,
}
"""What adding up may mean; "avg" divides by the number of ranks at the end."""


@dataclass
class Blocks:
    """The memory of a rank for the blocks of a collective (see `wirewise.collective.relations`)."""

    dtype: torch.dtype
    elements: Mapping[int, int]
    """Elements of each block, at least of those that the rank sends or receives."""
    tensors: dict[int, Tensor]
    """Flat and contiguous; a block that is only passed on needs none."""
    even: bool = True
    """Whether all ranks know blocks of one size only, so that they agree on segments."""
    read_only: frozenset[int] = frozenset()
    """Blocks whose tensors must stay: those that are written are copied first."""
    finish: list[Callable[[], object]] = field(default_factory=list)
    """Called when all is done, such as to copy results to where they belong."""


class ChunkLayout(NamedTuple):
    """Elements of each chunk and segment inside the chunk's block, and how many segments there are."""

    segments: int
    itemsize: int
    bounds: dict[int, tuple[int, ...]]
    """Positions of each chunk, one more than segments."""

    def size_bytes(self, chunks: Sequence[int], segment: int) -> int:
        """Bytes of a message."""
        found = (self.bounds[chunk] for chunk in chunks)
        return sum(bounds[segment + 1] - bounds[segment] for bounds in found) * self.itemsize


def layout(program: Program, blocks: Blocks, segments: int | None = None) -> ChunkLayout:
    """Divide blocks into chunks and segments, alike on all ranks.

    Args:
        program: Program whose shares and segments count.
        blocks: Elements of each block; chunks of blocks that are not listed are left out.
        segments: Other than the program's; fewer are made where they would be tiny.
    """
    each = program.chunks // program.blocks
    fractions = program.fractions()
    chunks: dict[int, tuple[int, int]] = {}
    for block, count in blocks.elements.items():
        own = range(block * each, (block + 1) * each)
        ends = [round(count * f) for f in itertools.accumulate(fractions[c] for c in own)]
        ends[-1] = count
        chunks.update(zip(own, itertools.pairwise([0, *ends]), strict=True))
    parts = program.segments if segments is None else segments
    if blocks.even:
        longest = max((end - start for start, end in chunks.values()), default=0) * blocks.dtype.itemsize
        parts = max(min(parts, math.ceil(longest / LEAST_SEGMENT_BYTES)), 1)
    return ChunkLayout(
        parts,
        blocks.dtype.itemsize,
        {
            chunk: tuple(start + (end - start) * s // parts for s in range(parts + 1))
            for chunk, (start, end) in chunks.items()
        },
    )


class Scratch(NamedTuple):
    """Bytes of a message."""

    tensor: Tensor
    view: memoryview


class Pool:
    """Buffers that are used again, because fresh memory costs a page fault for every 4 KiB."""

    def __init__(self) -> None:
        self._free: dict[int, list[Scratch]] = defaultdict(list)
        self._kept_bytes = 0

    def take(self, size_bytes: int) -> Scratch:
        """A buffer of at least so many bytes."""
        size = max(_SMALLEST, 1 << (size_bytes - 1).bit_length())
        if self._free[size]:
            self._kept_bytes -= size
            return self._free[size].pop()
        tensor = torch.empty(size, dtype=torch.uint8)
        return Scratch(tensor, _bytes(tensor))

    def give(self, scratch: Scratch) -> None:
        """Hand a buffer back."""
        size = scratch.tensor.numel()
        if self._kept_bytes + size <= _KEPT_BYTES:
            self._kept_bytes += size
            self._free[size].append(scratch)


class Memory:
    """The chunks of one operation on one rank."""

    def __init__(
        self, program: Program, acts: Acts, blocks: Blocks, places: ChunkLayout, reduction: str
    ) -> None:
        self._bounds = places.bounds
        self._dtype, self._itemsize = blocks.dtype, blocks.dtype.itemsize
        self._reduce = REDUCTIONS[reduction]
        self._blocks = blocks
        touched = {chunk: program.block_of(chunk) for act in acts.acts for chunk in act.chunks}
        written = {touched[chunk] for chunk in acts.written}
        flat = {block: self._flat(block, block in written) for block in set(touched.values())}
        bytes_ = {block: _bytes(t.view(torch.uint8)) for block, t in flat.items()}
        self._tensors = {chunk: flat[block] for chunk, block in touched.items()}
        self._views = {chunk: bytes_[block] for chunk, block in touched.items()}

    def _flat(self, block: int, written: bool) -> Tensor:
        found = self._blocks.tensors.get(block)
        if found is None:
            return torch.empty(self._blocks.elements[block], dtype=self._dtype)
        return found.clone() if written and block in self._blocks.read_only else found

    def views(self, chunks: Sequence[int], segment: int) -> list[memoryview]:
        """The bytes of a message where they lie."""
        found = []
        for chunk in chunks:
            start, end = self._bounds[chunk][segment : segment + 2]
            if end > start:
                found.append(self._views[chunk][start * self._itemsize : end * self._itemsize])
        return found

    def write(self, chunks: Sequence[int], reduces: Sequence[bool], segment: int, message: Tensor) -> None:
        """Put the bytes of a message where they belong, or add them."""
        offset = 0
        for chunk, reduce in zip(chunks, reduces, strict=True):
            start, end = self._bounds[chunk][segment : segment + 2]
            stop = offset + (end - start) * self._itemsize
            own, other = self._tensors[chunk][start:end], message[offset:stop].view(self._dtype)
            (self._reduce if reduce else Tensor.copy_)(own, other)
            offset = stop

    def finish(self) -> None:
        """Bring the results to where they belong."""
        for action in self._blocks.finish:
            action()


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy())  # type: ignore[arg-type]


def copies_back(target: Tensor, flat: Tensor) -> list[Callable[[], object]]:
    """What must be done at the end for a tensor that was replaced by a contiguous copy."""
    if target.numel() == 0 or flat.data_ptr() == target.data_ptr():
        return []
    return [partial(target.copy_, flat.view(target.shape))]
