"""The reference kernels that select elements: the largest, random ones, or those above a sampled threshold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wirewise.codec.gradients.kernels.pieces import (
    Bounds,
    SelectedElements,
    first_bad,
    first_not_finite,
    slices,
    values_of,
    words_of,
)
from wirewise.codec.gradients.segments import Segments

__all__ = ["TRIES", "above", "accumulate", "accumulate_above", "add_sparse", "draw", "largest", "take"]

TRIES = 4
"""Maximum number of times that a threshold is adapted."""


def largest(
    gradient: Tensor, memory: Tensor | None, segments: Segments, counts: np.ndarray
) -> tuple[Tensor, Tensor, int]:
    """Indices (int32, ascending) and values of the largest |v| of each segment; clears sent elements of memory."""
    v = values_of(gradient, memory)
    bad = first_not_finite(v, None, segments)
    chosen = []
    for part, count in zip(slices(segments), counts.tolist(), strict=True):
        order = v[part].abs().sort(descending=True, stable=True).indices
        chosen.append(order[:count].sort().values + part.start)
    indices = torch.cat(chosen).to(torch.int32)
    if bad >= 0:
        return indices, v[indices.long()], bad
    if memory is None:
        return indices, take(gradient, indices, clear=False), bad
    memory.add_(gradient)
    return indices, take(memory, indices, clear=True), bad


def draw(segments: Segments, counts: np.ndarray, key: int, device: torch.device) -> Tensor:
    """Sample distinct indices of each segment, int32, in sampling order.

    Draws floor(h * size / 2^32) that are biased or repeated are rejected. Beyond half of a segment, the excluded
    indices are sampled instead, and the others follow in ascending order.
    """
    parts = []
    for s, (size, count) in enumerate(zip(segments.sizes.tolist(), counts.tolist(), strict=True)):
        wanted = count if count <= size // 2 else size - count
        found = _distinct(key, int(segments.ids[s]), size, wanted, device)
        if count > size // 2:
            left = torch.ones(size, dtype=torch.bool, device=device)
            left[found] = False
            found = torch.nonzero(left).flatten()
        parts.append(found + int(segments.offsets[s]))
    return torch.cat(parts).to(torch.int32)


def _distinct(key: int, row: int, size: int, wanted: int, device: torch.device) -> Tensor:
    draws = 2 * wanted + 64
    while True:
        product = words_of(key, row, draws, device) * size
        fair = product[(product & 0xFFFFFFFF) >= (1 << 32) % size] >> 32
        ordered, place = fair.sort(stable=True)
        came_before = torch.zeros_like(fair, dtype=torch.bool)
        came_before[place[1:]] = ordered[1:] == ordered[:-1]
        values = fair[~came_before]
        if len(values) >= wanted:
            return values[:wanted]
        draws *= 2


def accumulate(gradient: Tensor, memory: Tensor, segments: Segments) -> int:
    """Add the gradient to the memory, clipped to float32; returns the first non-finite segment, or -1."""
    most = torch.finfo(torch.float32).max
    return first_not_finite(memory.add_(gradient).clamp_(-most, most), None, segments)


def take(values: Tensor, indices: Tensor, *, clear: bool) -> Tensor:
    """Values at distinct indices, float32; with `clear`, the source elements become 0."""
    places = indices.long()
    taken = values[places]
    if clear:
        values[places] = 0.0
    return taken


def add_sparse(indices: Tensor, values: Tensor, out: Tensor) -> None:
    """Add values at distinct indices."""
    out.index_add_(0, indices.long(), values)


def accumulate_above(
    gradient: Tensor,
    memory: Sequence[Tensor],
    share: float,
    masked: bool,
    segments: Segments,
    bounds: Bounds,
    key: int,
    into: SelectedElements,
) -> int:
    """Update momentum u = share * u + gradient and residual w = w + u, then apply `above` to the residual.

    With `masked`, u becomes 0 where elements are sent. Both are clipped to float32's largest value, so that only a
    memory that was already non-finite is refused.
    """
    rest, momentum = memory
    most = torch.finfo(torch.float32).max
    rest.add_(momentum.mul_(share).add_(gradient)).clamp_(-most, most)
    momentum.clamp_(-most, most)
    return above(rest, memory if masked else memory[:1], segments, bounds, key, into)


def above(
    values: Tensor,
    memory: Sequence[Tensor] | None,
    segments: Segments,
    bounds: Bounds,
    key: int,
    into: SelectedElements,
) -> int:
    """Write the elements of large magnitude of each segment, up to its bound, by ascending index.

    The threshold is an order statistic of the samples floor(h * size / 2^32); if too few or too many elements reach
    it, a proportionally adjusted statistic is tried, and finally the elements are selected exactly.

    Each segment is padded with its first index and 0. Sent elements of all of `memory` become 0.

    Returns:
        The first non-finite segment, or -1.
    """
    bad = first_bad(torch.stack([values[part].isfinite().all() for part in slices(segments)]))
    indices, found, counts = [], [], []
    for s, (part, most) in enumerate(zip(slices(segments), bounds.most.tolist(), strict=True)):
        chosen = _chosen(values[part].abs(), segments, bounds, s, key) + part.start
        pads = most - len(chosen)
        indices.append(torch.nn.functional.pad(chosen, (0, pads), value=part.start))
        found.append(torch.nn.functional.pad(values[chosen], (0, pads)))
        counts.append(len(chosen))
        for buffer in memory if memory is not None and bad < 0 else ():
            buffer[chosen] = 0.0
    into.indices.copy_(torch.cat(indices))
    into.values.copy_(torch.cat(found))
    into.counts.copy_(torch.tensor(counts))
    return bad


def _chosen(magnitudes: Tensor, segments: Segments, bounds: Bounds, s: int, key: int) -> Tensor:
    wanted, least, most, samples, aim = (int(table[s]) for table in bounds)
    if samples:
        draws = words_of(key, int(segments.ids[s]), samples, magnitudes.device) * len(magnitudes) >> 32
        ordered = magnitudes[draws].sort(descending=True).values
    for _ in range(1 + TRIES if samples else 0):
        reached = magnitudes >= ordered[aim - 1]
        count = int(reached.sum())
        if least <= count <= most:
            return torch.nonzero(reached).flatten()
        aim, before = min(samples, (2 * aim * wanted + count) // (2 * count)), aim
        if aim in (0, before):
            break
    return magnitudes.sort(descending=True, stable=True).indices[:wanted].sort().values
