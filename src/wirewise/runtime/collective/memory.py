"""Memory of a program's chunks in tensors, and buffers for messages that cannot be placed yet."""

from __future__ import annotations

import ctypes
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
"""Smallest segment, in bytes: smaller ones cost more for their messages than they gain by overlap."""
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
"""Reductions; "avg" divides by the number of ranks at the end."""


@dataclass
class Blocks:
    """Memory of a rank for the blocks of a collective (see `wirewise.collective.relations`)."""

    dtype: torch.dtype
    elements: Mapping[int, int]
    """Number of elements of each block, at least of those that the rank sends or receives."""
    tensors: dict[int, Tensor]
    """Flat contiguous tensor of each block, except of blocks that are only forwarded."""
    even: bool = True
    """Whether all blocks have the same size on all ranks, so that they agree on segments."""
    read_only: frozenset[int] = frozenset()
    """Blocks whose tensors must stay unchanged; they are copied before they are written."""
    finish: list[Callable[[], object]] = field(default_factory=list)
    """Callbacks at the end, such as to copy results to their destination."""


class ChunkLayout(NamedTuple):
    """Elements of each chunk and segment within the chunk's block, and the number of segments."""

    segments: int
    itemsize: int
    bounds: dict[int, tuple[int, ...]]
    """Boundaries of each chunk's segments, [segments + 1]."""

    def size_bytes(self, chunks: Sequence[int], segment: int) -> int:
        """Size of a message, in bytes."""
        found = (self.bounds[chunk] for chunk in chunks)
        return sum(bounds[segment + 1] - bounds[segment] for bounds in found) * self.itemsize


def layout(program: Program, blocks: Blocks, segments: int | None = None) -> ChunkLayout:
    """Divide blocks into chunks and segments, in the same way on all ranks.

    Args:
        program: Program that defines fractions and segments.
        blocks: Number of elements of each block; chunks of other blocks are left out.
        segments: Override of the program's segments; fewer are used if they would be tiny.
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
    """Buffer with the bytes of a message."""

    tensor: Tensor
    view: memoryview


class Pool:
    """Pool of reusable buffers, as fresh memory costs a page fault per 4 KiB."""

    def __init__(self) -> None:
        self._free: dict[int, list[Scratch]] = defaultdict(list)
        self._kept_bytes = 0

    def take(self, size_bytes: int) -> Scratch:
        """Borrow a buffer of at least `size_bytes`."""
        size = max(_SMALLEST, 1 << (size_bytes - 1).bit_length())
        if self._free[size]:
            self._kept_bytes -= size
            return self._free[size].pop()
        tensor = torch.empty(size, dtype=torch.uint8)
        return Scratch(tensor, _bytes(tensor))

    def give(self, scratch: Scratch) -> None:
        """Return a buffer."""
        size = scratch.tensor.numel()
        if self._kept_bytes + size <= _KEPT_BYTES:
            self._kept_bytes += size
            self._free[size].append(scratch)


class Memory:
    """Chunks of one operation on one rank."""

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
        """Bytes of a message in place."""
        found = []
        for chunk in chunks:
            start, end = self._bounds[chunk][segment : segment + 2]
            if end > start:
                found.append(self._views[chunk][start * self._itemsize : end * self._itemsize])
        return found

    def write(self, chunks: Sequence[int], reduces: Sequence[bool], segment: int, message: Tensor) -> None:
        """Write the bytes of a message to its chunks, or reduce them."""
        offset = 0
        for chunk, reduce in zip(chunks, reduces, strict=True):
            start, end = self._bounds[chunk][segment : segment + 2]
            stop = offset + (end - start) * self._itemsize
            own, other = self._tensors[chunk][start:end], message[offset:stop].view(self._dtype)
            (self._reduce if reduce else Tensor.copy_)(own, other)
            offset = stop

    def finish(self) -> None:
        """Copy the results to their tensors."""
        for action in self._blocks.finish:
            action()


def _bytes(tensor: Tensor) -> memoryview:
    """Memory of a contiguous tensor, which lives as long as the view does.

    Not by NumPy: a storage that it has seen can no longer be resized, as FSDP resizes those of its parameters.
    """
    if not tensor.nbytes:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    memory.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def copies_back(target: Tensor, flat: Tensor) -> list[Callable[[], object]]:
    """Final copies for a tensor that was replaced by a contiguous one."""
    if target.numel() == 0 or flat.data_ptr() == target.data_ptr():
        return []
    return [partial(target.copy_, flat.view(target.shape))]
