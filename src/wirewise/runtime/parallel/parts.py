"""Shards of tensors on a mesh: slicing, joining, shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wirewise.errors import PlanError
from wirewise.plans.parallel import DimPlacement

__all__ = ["Placements", "join_shards", "local_shape", "part_of_mesh", "slice_shard", "whole_of_parts"]

Placements = tuple[DimPlacement, ...]
"""Layout of a tensor, [dimensions of the mesh]; a later dimension cuts the shards of an earlier one."""


def slice_shard(tensor: Tensor, placed: DimPlacement, parts: int, number: int) -> Tensor:
    """Slice one shard of a tensor along a mesh dimension, as a view if possible.

    Args:
        tensor: The whole tensor.
        placed: Placement along the dimension.
        parts: Number of ranks along the mesh dimension.
        number: Coordinate of the shard's rank.
    """
    if parts == 1 or placed.kind == "R":
        return tensor
    if placed.kind == "P":
        return tensor if number == 0 else torch.zeros_like(tensor)
    size = _part_size(tensor.shape[placed.dim], placed, parts)
    if placed.factor == 1:
        return tensor.narrow(placed.dim, number * size, size)
    blocks = tensor.unflatten(placed.dim, (placed.factor, -1))
    own = size // placed.factor
    return blocks.narrow(placed.dim + 1, number * own, own).flatten(placed.dim, placed.dim + 1)


def join_shards(parts: Sequence[Tensor], placed: DimPlacement) -> Tensor:
    """Join shards along one mesh dimension."""
    if placed.kind == "R" or len(parts) == 1:
        return parts[0]
    if placed.kind == "P":
        return torch.stack(list(parts)).sum(0)
    if placed.factor == 1:
        return torch.cat(list(parts), placed.dim)
    blocks = [part.unflatten(placed.dim, (placed.factor, -1)) for part in parts]
    return torch.cat(blocks, placed.dim + 1).flatten(placed.dim, placed.dim + 1)


def local_shape(shape: Sequence[int], placements: Placements, mesh: Sequence[int]) -> tuple[int, ...]:
    """Shape of a rank's shard, the same on all ranks.

    Raises:
        PlanError: A dimension does not divide into equal shards.
    """
    found = list(shape)
    for placed, parts in zip(placements, mesh, strict=True):
        if placed.kind == "S" and parts > 1:
            if placed.dim >= len(found):
                raise PlanError(
                    f"a tensor of {list(shape)} is placed {placed}; expected one of its dimensions"
                )
            found[placed.dim] = _part_size(found[placed.dim], placed, parts)
    return tuple(found)


def part_of_mesh(
    tensor: Tensor, placements: Placements, mesh: Sequence[int], coordinates: Sequence[int]
) -> Tensor:
    """A rank's contiguous shard of a tensor, by its mesh coordinates."""
    whole = tensor
    for placed, parts, number in zip(placements, mesh, coordinates, strict=True):
        tensor = slice_shard(tensor, placed, parts, number)
    return tensor if tensor is whole else tensor.contiguous()


def whole_of_parts(parts: Sequence[Tensor], placements: Placements, mesh: Sequence[int]) -> Tensor:
    """Join the shards of all ranks of a mesh, in row-major order."""
    found = list(parts)
    for placed, count in reversed(list(zip(placements, mesh, strict=True))):
        found = [join_shards(found[first : first + count], placed) for first in range(0, len(found), count)]
    return found[0]


def _part_size(size: int, placed: DimPlacement, parts: int) -> int:
    if size % (parts * placed.factor):
        raise PlanError(
            f"a dimension of {size} is placed {placed} on {parts} ranks; expected a multiple of "
            f"{parts * placed.factor}: plan again, unequal parts are not carried out"
        )
    return size // parts
