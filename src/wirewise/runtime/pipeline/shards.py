"""Slices of tensors within a rank's own part, packed to bytes and unpacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.plans.reshard import UnitTask
from wirewise.plans.sharding import Intervals, LaidOutTensor, Sharding, TensorSlice

__all__ = ["Parts", "as_bytes", "pack_slices", "part_of", "same_bits", "unpack"]

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types that every copy and every process group knows, by bytes of an element."""


class Parts:
    """Parts of some tensors held by one rank on one side of a plan.

    Args:
        tensors: All tensors of the plan.
        side: "source" or "target".
        rank: Index of the rank.
    """

    def __init__(self, tensors: Sequence[LaidOutTensor], side: str, rank: int) -> None:
        self.side, self.rank, self._tensors = side, rank, tensors
        self._extents: dict[int, tuple[Intervals, ...]] = {}
        self._places: dict[TensorSlice, tuple[slice, ...]] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        """Shape of the part of each tensor that the rank holds, by number."""
        found: dict[tuple[Sharding, tuple[int, ...]], tuple[Intervals, ...]] = {}
        for number, one in enumerate(tensors):
            layout: Sharding = getattr(one, side)
            if rank in layout.ranks:
                key = (layout, one.shape)
                if key not in found:
                    found[key] = layout.extents(one.shape)[layout.ranks.index(rank)]
                self._extents[number] = found[key]
                self.shapes[number] = tuple(sum(b - a for a, b in own) for own in found[key])

    def check(self, shards: Mapping[int, Tensor]) -> None:
        """Raise unless these are the rank's expected parts.

        Args:
            shards: Part of each tensor, by index.

        Raises:
            InputError: A part is missing, or has another shape or dtype; the message names its tensor.
        """
        for number, shape in self.shapes.items():
            one, part = self._tensors[number], shards.get(number)
            if part is None:
                raise InputError(
                    f"rank {self.rank} gives nothing of tensor {one.name!r}; expected its part {list(shape)}"
                )
            kind = str(part.dtype).removeprefix("torch.")
            if tuple(part.shape) != shape or kind != one.dtype:
                raise InputError(
                    f"rank {self.rank} gives {kind} {list(part.shape)} of tensor {one.name!r}; expected its part "
                    f"{one.dtype} {list(shape)} under the layout {getattr(one, self.side).text}"
                )

    def view(self, shards: Mapping[int, Tensor], tensor_slice: TensorSlice) -> Tensor:
        """View of a slice within the rank's part, as integers of the same width."""
        place = self._places.get(tensor_slice)
        if place is None:
            place = self._places[tensor_slice] = self._place(tensor_slice)
        part = shards[tensor_slice.tensor]
        plain = part.view(_SAME_WIDTH.get(part.element_size(), part.dtype)) if part.dim() else part
        return plain[place]

    def _place(self, one: TensorSlice) -> tuple[slice, ...]:
        found = []
        for (start, stop), own in zip(one.box, self._extents[one.tensor], strict=True):
            before = 0
            for first, last in own:
                if first <= start and stop <= last:
                    found.append(slice(before + start - first, before + stop - first))
                    break
                before += last - first
        return tuple(found)


def as_bytes(view: Tensor) -> Tensor | None:
    """Memory of a slice as uint8 [bytes]. None if it is not contiguous."""
    return view.reshape(-1).view(torch.uint8) if view.is_contiguous() else None


def pack_slices(task: UnitTask, parts: Parts, shards: Mapping[int, Tensor]) -> Tensor:
    """Pack the slices of a task to bytes, uint8 [size], without a copy if they are contiguous."""
    if len(task.slices) == 1:
        whole = as_bytes(parts.view(shards, task.slices[0]))
        if whole is not None:
            return whole
    views = [parts.view(shards, one) for one in task.slices]
    found = torch.empty(task.size_bytes, dtype=torch.uint8, device=views[0].device)
    begin = 0
    for view in views:
        size = view.numel() * view.element_size()
        found[begin : begin + size].view(view.dtype).view(view.shape).copy_(view)
        begin += size
    return found


def unpack(task: UnitTask, data: Tensor, parts: Parts, shards: Mapping[int, Tensor]) -> None:
    """Unpack the bytes of a task into the rank's part, except slices already in place."""
    begin = 0
    for one in task.slices:
        view = parts.view(shards, one)
        size = view.numel() * view.element_size()
        source = data[begin : begin + size]
        if source.data_ptr() != view.data_ptr() or not view.is_contiguous():
            if source.storage_offset() % view.element_size():
                source = source.clone()
            view.copy_(source.view(view.dtype).view(view.shape))
        begin += size


def part_of(tensor: Tensor, layout: Sharding, rank: int) -> Tensor | None:
    """A rank's part of a tensor. None if it holds nothing. All but the first partial sum are zero."""
    if rank not in layout.ranks:
        return None
    position = layout.ranks.index(rank)
    found = tensor
    for dim, intervals in enumerate(layout.extents(tensor.shape)[position]):
        pieces = [found.narrow(dim, start, stop - start) for start, stop in intervals]
        found = torch.cat(pieces, dim) if pieces else found.narrow(dim, 0, 0)
    first = all(layout.coordinates(position)[axis] == 0 for axis in layout.partial)
    return found.clone(memory_format=torch.contiguous_format) if first else torch.zeros_like(found)


def same_bits(tensor: Tensor, other: Tensor) -> bool:
    """Whether shapes, dtypes and all bits are equal."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (tensor, other)))
