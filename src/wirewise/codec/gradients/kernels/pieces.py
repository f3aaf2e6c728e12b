"""Shared parts of the reference kernels: segment slices, random words, codes in planes.

Codes of b < 8 bits lie in planes: a segment is cut into blocks of `BLOCK` elements, and byte j of a block of W bytes
holds elements j, j + W, j + 2W, ... of the block from its lowest bits upward.

The draw of element c of segment id is the 32-bit word h = mix32(row_key(key, id) + c * GOLDEN) of `wirewise.rng`; its
upper 24 bits are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wirewise import rng
from wirewise.codec.gradients.segments import Segments

__all__ = [
    "BLOCK",
    "Bounds",
    "SelectedElements",
    "all_finite",
    "first_bad",
    "first_not_finite",
    "from_planes",
    "peaks",
    "slices",
    "to_planes",
    "values_of",
    "words",
    "words_of",
]

BLOCK = 4096
"""Elements that share planes."""


class Bounds(NamedTuple):
    """Bounds of the search for the threshold of each segment; int64 [s] each."""

    wanted: np.ndarray
    """Elements to keep."""
    least: np.ndarray
    most: np.ndarray
    samples: np.ndarray
    """Number of elements sampled, with replacement; 0 if the wanted elements are found exactly."""
    aims: np.ndarray
    """Rank, among the samples in descending order, of the first threshold tried."""


class SelectedElements(NamedTuple):
    """Output buffers for the selected elements of all segments, and their counts."""

    indices: Tensor
    """Indices, int32 [sum of most]."""
    values: Tensor
    """Values, float32 [sum of most]."""
    counts: Tensor
    """Elements kept of each segment, int32 [s]."""


def slices(segments: Segments) -> Iterator[slice]:
    """Slice of each segment."""
    for start, end in zip(segments.offsets[:-1].tolist(), segments.offsets[1:].tolist(), strict=True):
        yield slice(start, end)


def values_of(gradient: Tensor, memory: Tensor | None) -> Tensor:
    """Values to send, v = gradient + memory."""
    return gradient if memory is None else gradient + memory


def first_bad(valid: Tensor) -> int:
    """Index of the first segment that is False in bool [s], or -1."""
    wrong = torch.nonzero(~valid)
    return int(wrong[0]) if len(wrong) else -1


def peaks(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, int]:
    """Largest |v| of each segment, float32 [s]; and the first non-finite segment, or -1."""
    v = values_of(gradient, memory).abs()
    found = torch.stack([v[part].amax() for part in slices(segments)])
    return found, first_bad(found.isfinite())


def first_not_finite(gradient: Tensor, memory: Tensor | None, segments: Segments) -> int:
    """Index of the first segment with a non-finite value, or -1."""
    return peaks(gradient, memory, segments)[1]


def all_finite(values: Tensor) -> bool:
    """Whether all values are finite."""
    return bool(values.isfinite().all())


def words(key: int, segments: Segments, s: int, device: torch.device) -> Tensor:
    """32 random bits of each element of a segment, int64."""
    return words_of(key, int(segments.ids[s]), int(segments.sizes[s]), device)


def words_of(key: int, row: int, count: int, device: torch.device) -> Tensor:
    """First random words of a row, int64 [count]; their two 16-bit halves are columns of `uniform16`."""
    start = int(rng.row_keys(key, np.array([row]))[0])
    counter = torch.arange(count, device=device) * rng.GOLDEN
    return rng.mix((counter + start) & 0xFFFFFFFF)


def to_planes(codes: Tensor, bits: int, block: int = BLOCK) -> Tensor:
    """Pack the codes (uint8) of a segment into planes of bits."""
    parts = []
    for part in codes.split(block):
        planes = 8 // bits
        size = -(-len(part) // planes)
        padded = part.new_zeros(planes * size)
        padded[: len(part)] = part
        shifts = (torch.arange(planes, device=codes.device) * bits).to(torch.uint8)
        parts.append((padded.view(planes, size) << shifts[:, None]).sum(dim=0, dtype=torch.uint8))
    return torch.cat(parts)


def from_planes(packed: Tensor, bits: int, count: int, block: int = BLOCK) -> Tensor:
    """Inverse of `to_planes`."""
    planes = 8 // bits
    shifts = (torch.arange(planes, device=packed.device) * bits).to(torch.uint8)
    size = block // planes
    parts = [
        ((part[None, :] >> shifts[:, None]) & ((1 << bits) - 1)).flatten()[: count - planes * start]
        for start, part in zip(range(0, len(packed), size), packed.split(size), strict=True)
    ]
    return torch.cat(parts)
