"""Pieces of a flat group of gradients, each with its own scale, norm or k.

A segment is a tensor, or a block of fixed size inside a tensor. The payload of a segment depends on its elements and
id only, never on its group, so that grouping does not change the numerics.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["Segments"]

_MOST_ELEMENTS = (1 << 31) - 1
"""Indices travel as int32."""


class Segments:
    """Segments of a flat group, one after another.

    Args:
        sizes: Elements of each tensor, at least one; [t].
        ids: Index of each tensor in the model, below 2^31, on which random draws depend. Defaults to 0, 1, ...; [t].
        block: Block size, in elements; each tensor is cut into such blocks, the last one shorter. None if a segment
            is a whole tensor.
        shapes: Shapes of each tensor, for matrix codecs. None if unknown; [t].
        firsts: Index of the first block of each tensor, if it is a piece of a larger one. Defaults to 0; [t].

    Attributes:
        sizes: Elements of each segment, int64 [s].
        offsets: First element of each segment, then the end, int64 [s + 1].
        total: Elements of the group.
        ids: Id of each segment: tensor << 32 | block, int64 [s].
        tensors: First element of each tensor, then the end, int64 [t + 1].
        tensor_ids: Index of each tensor, int64 [t].
        shapes: Shape of each segment's tensor, as given.

    Raises:
        InputError: No tensors, an empty one, more than 2^31 - 1 elements, or invalid ids, block or shapes.
    """

    def __init__(
        self,
        sizes: Sequence[int] | NDArray[np.int64],
        *,
        ids: Sequence[int] | None = None,
        block: int | None = None,
        shapes: Sequence[Sequence[int]] | None = None,
        firsts: Sequence[int] | None = None,
    ) -> None:
        whole = np.asarray(sizes, dtype=np.int64)
        tensors = np.arange(len(whole)) if ids is None else np.asarray(ids, dtype=np.int64)
        _check(whole, tensors, block)
        self.shapes = None if shapes is None else _checked(shapes, whole)
        self.tensors: NDArray[np.int64] = np.concatenate([[0], np.cumsum(whole)])
        self.tensor_ids: NDArray[np.int64] = tensors
        self.sizes: NDArray[np.int64]
        self.ids: NDArray[np.int64]
        begins = (tensors << 32) + (0 if firsts is None else np.asarray(firsts, dtype=np.int64))
        self.sizes, self.ids = (whole, begins) if block is None else _cut(whole, begins, block)
        self.offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(self.sizes)])
        self.total = int(self.offsets[-1])
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._blocks: dict[int, NDArray[np.int64]] = {}

    def starts_of(self, bits: int) -> NDArray[np.int64]:
        """First byte of each segment at `bits` bits per element, then the end; int64 [s + 1]."""
        if bits not in self._starts:
            self._starts[bits] = np.concatenate([[0], np.cumsum(-(-self.sizes * bits // 8))])
        return self._starts[bits]

    def blocks_of(self, size: int) -> NDArray[np.int64]:
        """Index of the first block (of `size` elements) of each segment, then the total; int64 [s + 1]."""
        if size not in self._blocks:
            self._blocks[size] = np.concatenate([[0], np.cumsum(-(-self.sizes // size))])
        return self._blocks[size]

    def counts(self, ratio: float) -> NDArray[np.int64]:
        """Elements that sparse codecs keep of each segment, max(1, floor(ratio * size)); int64 [s]."""
        return np.maximum(1, (ratio * self.sizes).astype(np.int64))

    def describe(self, segment: int) -> str:
        """Describe a segment for messages."""
        tensor, block = divmod(int(self.ids[segment]), 1 << 32)
        start, end = self.offsets[segment], self.offsets[segment + 1]
        return (
            f"segment {segment} (tensor {tensor}, block {block}; elements {start} to {end - 1} of the group)"
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"Segments({len(self)} of {self.total} elements)"


def _cut(
    sizes: NDArray[np.int64], begins: NDArray[np.int64], block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes and ids of the blocks of all tensors, from the id of each one's first block on."""
    counts = -(-sizes // block)
    owner = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.minimum(block, sizes[owner] - number * block), begins[owner] + number


def _check(sizes: NDArray[np.int64], ids: NDArray[np.int64], block: int | None) -> None:
    if sizes.ndim != 1 or not len(sizes) or sizes.min() < 1 or sizes.sum() > _MOST_ELEMENTS:
        raise InputError(
            f"sizes are {sizes.tolist()[:8]}; expected one or more tensors of at least one element each and at most "
            "2^31 - 1 together: leave empty tensors out and split larger groups"
        )
    if ids.shape != sizes.shape or ids.min() < 0 or ids.max() > _MOST_ELEMENTS:
        raise InputError(f"ids are {ids.tolist()[:8]}; expected {len(sizes)} numbers from 0 to 2^31 - 1")
    if block is not None and block < 1:
        raise InputError(f"block is {block}; expected at least one element")


def _checked(shapes: Sequence[Sequence[int]], sizes: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    found = tuple(tuple(int(side) for side in shape) for shape in shapes)
    if [prod(shape) for shape in found] != sizes.tolist():
        raise InputError(
            f"shapes are {found[:8]}; expected those of tensors of {sizes.tolist()[:8]} elements"
        )
    return found
