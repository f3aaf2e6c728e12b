"""Gradients of a bucket, contiguous in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wirewise.codec.gradients import copy_checked, parts_finite

__all__ = ["Copies", "FlatBucket", "Slot", "flat_buckets"]


_LARGE = 1 << 14
"""Elements from which on a gradient is checked in its copy; for small ones the call takes longer than the look."""
_PARALLEL = 1 << 15
"""Elements beyond which torch copies on all its threads: with several, that and the codec's own check are faster."""


class Slot(NamedTuple):
    """Gradient in a bucket, or a piece of one."""

    name: str
    parameter: nn.Parameter
    elements: int

    @property
    def kind(self) -> Any:
        """Kind of gradient; gradients of one kind share a buffer."""
        return self.parameter.dtype, self.parameter.device


class Copies:
    """Copies of gradients to their views: large ones by `copy_checked`, others by torch.

    Args:
        views: View of each gradient, by parameter.

    Attributes:
        finite: Parameters whose large gradients were copied in this back-propagation and found finite.
    """

    def __init__(self, views: Mapping[nn.Parameter, Tensor]) -> None:
        # Behind the version of the buffer, which so counts only what others change.
        self._targets = {parameter: view.data for parameter, view in views.items()}
        self.finite: set[nn.Parameter] = set()

    def copy(self, parameter: nn.Parameter, check: bool) -> None:
        """Copy a gradient; a large one is checked for non-finite values in the same pass."""
        gradient, target = parameter.grad, self._targets[parameter]
        assert gradient is not None
        if not check or target.numel() < _LARGE or not _alike(gradient, target):
            target.copy_(gradient)
        elif target.numel() > _PARALLEL and torch.get_num_threads() > 1:
            target.copy_(gradient)
        elif copy_checked(_line(gradient), _line(target)):
            self.finite.add(parameter)


def _alike(gradient: Tensor, target: Tensor) -> bool:
    """Whether both are float32 on the CPU, and lie in memory alike."""
    if gradient.type() != "torch.FloatTensor" or target.type() != "torch.FloatTensor":
        return False
    return gradient.shape == target.shape and gradient.stride() == target.stride()


def _line(dense: Tensor) -> Tensor:
    """All elements in the order of memory, 1-D."""
    return dense.as_strided((dense.numel(),), (1,))


def _small_parts(slots: Sequence[Slot]) -> NDArray[np.int64]:
    """First element of each stretch of small gradients in a buffer, and its end; int64 [stretches, 2]."""
    found, start = list[list[int]](), 0
    for slot in slots:
        end = start + slot.elements
        if slot.parameter.numel() < _LARGE:
            if found and found[-1][1] == start:
                found[-1][1] = end
            else:
                found.append([start, end])
        start = end
    return np.array(found, dtype=np.int64).reshape(-1, 2)


class FlatBucket:
    """Gradients as views of flat buffers, one buffer per dtype and device.

    Args:
        slots: Contents of each buffer, in order.
        flats: 1-D buffers, [slots].
        views: Views of the gradients; whole for a parameter in pieces.
        chunks: Number of pieces of about equal size to communicate.
        copies: Copies of the gradients into these views, for all buckets that share them.
    """

    def __init__(
        self,
        slots: list[list[Slot]],
        flats: list[Tensor],
        views: dict[nn.Parameter, Tensor],
        chunks: int = 1,
        copies: Copies | None = None,
    ) -> None:
        self.slots, self.flats, self.views, self._chunks = slots, flats, views, chunks
        self.parameters = list(dict.fromkeys(slot.parameter for group in slots for slot in group))
        self._copied: list[tuple[Tensor, Tensor]] = []
        """Buffers whose gradients travel as a copy, and the copies."""
        self.pieces = self._cut(flats)
        """Pieces that travel, views of the buffers, or of copies of fewer bits."""
        self.missing: set[nn.Parameter] = set()
        """Parameters whose gradients this back-propagation has not brought yet."""
        self.checks = False
        """Whether gradients are checked as they are copied."""
        self._copies = copies or Copies(views)
        self._small = [_small_parts(group) for group in slots]
        self._versions = [flat._version for flat in self.flats]
        self._streams: set[torch.cuda.Stream] = set()

    def _cut(self, flats: Sequence[Tensor]) -> list[Tensor]:
        whole = sum(flat.nbytes for flat in flats)
        return [
            piece
            for flat in flats
            for piece in flat.tensor_split(max(round(self._chunks * flat.nbytes / max(whole, 1)), 1))
            if piece.numel()
        ]

    def narrow(self, to: torch.dtype) -> None:
        """Communicate float32 gradients in a narrower dtype: `round` before, `widen` after."""
        wires = [torch.empty_like(f, dtype=to) if f.dtype == torch.float32 else f for f in self.flats]
        self.pieces = self._cut(wires)
        self._copied = [(f, wire) for f, wire in zip(self.flats, wires, strict=True) if wire is not f]

    def round(self) -> None:
        """Copy the gradients to the communicated buffer, if that is separate."""
        for flat, wire in self._copied:
            wire.copy_(flat)

    def widen(self) -> None:
        """Copy the communicated buffer to the gradients, if that is separate."""
        for flat, wire in self._copied:
            flat.copy_(wire)

    def clear(self) -> None:
        """Zero the gradients, as views of the buffers."""
        for flat in self.flats:
            flat.zero_()
        for parameter in self.parameters:
            view = self.views[parameter]
            if parameter.grad is not view:
                parameter.grad = view

    def begin(self) -> None:
        """Mark all gradients as missing."""
        self.missing = set(self.parameters)
        self._copies.finite.clear()
        self._versions = [flat._version for flat in self.flats]
        self._streams.clear()

    def own(self, parameter: nn.Parameter) -> None:
        """Make the gradient a view of the buffer: copied if separate, zeros if there is none."""
        view = self.views[parameter]
        if parameter.grad is not view:
            with torch.no_grad():
                if parameter.grad is None:
                    view.zero_()
                else:
                    self._copies.copy(parameter, self.checks)
                parameter.grad = view
        if view.is_cuda:
            self._streams.add(torch.cuda.current_stream(view.device))

    def is_finite(self, number: int) -> bool:
        """Whether large gradients were found finite when copied, and small ones are finite now.

        Also False if they may have changed since, for example by a user's hook that runs after ours.
        """
        flat, known = self.flats[number], self._copies.finite
        if not self.checks or flat._version != self._versions[number]:
            return False
        large = (slot.parameter for slot in self.slots[number] if slot.parameter.numel() >= _LARGE)
        return all(parameter in known for parameter in large) and parts_finite(flat, self._small[number])

    def join(self) -> None:
        """Make the current stream wait for every stream that wrote a gradient."""
        for flat in self.flats:
            if flat.is_cuda:
                current = torch.cuda.current_stream(flat.device)
                for other in self._streams - {current}:
                    current.wait_stream(other)

    @torch.no_grad()
    def divide(self, by: int) -> None:
        """Divide all gradients; call `join` before."""
        for flat in self.flats:
            flat.div_(by)


def flat_buckets(groups: Sequence[Sequence[Slot]], chunks: Sequence[int]) -> list[FlatBucket]:
    """Make a bucket for each group.

    Args:
        groups: Slots in order; pieces of a parameter are consecutive, in one group or in several.
        chunks: Number of chunks of each bucket, [groups].
    """
    number = iter(chunks)
    return [bucket for chain in _chains(groups) for bucket in _in_one_memory(chain, number)]


def _chains(groups: Sequence[Sequence[Slot]]) -> list[list[Sequence[Slot]]]:
    """Groups that share a parameter are in one chain: its gradient is one tensor, so their memory is one too."""
    found: list[list[Sequence[Slot]]] = []
    before: set[nn.Parameter] = set()
    for group in groups:
        own = {slot.parameter for slot in group}
        if own & before:
            found[-1].append(group)
        else:
            found.append([group])
        before = own
    return found


def _in_one_memory(chain: Sequence[Sequence[Slot]], chunks: Iterator[int]) -> Iterator[FlatBucket]:
    slots = _by_kind(slot for group in chain for slot in group)
    flats = {
        (dtype, device): torch.zeros(sum(slot.elements for slot in own), dtype=dtype, device=device)
        for (dtype, device), own in slots.items()
    }
    views = {p: view for kind, own in slots.items() for p, view in _views(flats[kind], own).items()}
    starts, copies = dict.fromkeys(flats, 0), Copies(views)
    for group in chain:
        kinds = _by_kind(group)
        parts = []
        for kind, own in kinds.items():
            end = starts[kind] + sum(slot.elements for slot in own)
            parts.append(flats[kind][starts[kind] : end])
            starts[kind] = end
        yield FlatBucket(list(kinds.values()), parts, views, next(chunks), copies)


def _by_kind(slots: Iterable[Slot]) -> dict[Any, list[Slot]]:
    found: dict[Any, list[Slot]] = defaultdict(list)
    for slot in slots:
        found[slot.kind].append(slot)
    return found


def _views(flat: Tensor, slots: Sequence[Slot]) -> dict[nn.Parameter, Tensor]:
    """Gradients in a buffer, each from its first slot on."""
    found: dict[nn.Parameter, Tensor] = {}
    start = 0
    for slot in slots:
        parameter = slot.parameter
        if parameter not in found:
            found[parameter] = flat[start : start + parameter.numel()].view(parameter.shape)
            if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
                found[parameter] = flat.as_strided(parameter.size(), parameter.stride(), start)
        start += slot.elements
    return found
