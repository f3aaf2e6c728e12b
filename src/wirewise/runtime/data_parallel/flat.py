"""The gradients of a bucket, one behind the other in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["FlatBucket", "Slot", "flat_buckets"]


class Slot(NamedTuple):
    """A gradient in a bucket, or a piece of one."""

    name: str
    parameter: nn.Parameter
    elements: int

    @property
    def kind(self) -> Any:
        """Gradients of one kind share a buffer."""
        return self.parameter.dtype, self.parameter.device


class FlatBucket:
    """Gradients as views of flat buffers, one buffer for each type and device.

    Args:
        slots: What lies in each of the buffers, in its order.
        flats: 1-D buffers, [slots].
        views: Of the gradients; of a parameter in pieces, all of it.
        chunks: Pieces of about equal size that the bucket travels in.
    """

    def __init__(
        self,
        slots: list[list[Slot]],
        flats: list[Tensor],
        views: dict[nn.Parameter, Tensor],
        chunks: int = 1,
    ) -> None:
        self.slots, self.flats, self.views = slots, flats, views
        self.parameters = list(dict.fromkeys(slot.parameter for group in slots for slot in group))
        whole = sum(flat.nbytes for flat in self.flats)
        self.pieces = [
            piece
            for flat in self.flats
            for piece in flat.tensor_split(max(round(chunks * flat.nbytes / max(whole, 1)), 1))
            if piece.numel()
        ]
        """What travels, views of the buffers."""
        self.missing: set[nn.Parameter] = set()
        """Parameters whose gradients this back-propagation has not brought yet."""
        self._streams: set[torch.cuda.Stream] = set()

    def begin(self) -> None:
        """All gradients are missing."""
        self.missing = set(self.parameters)
        self._streams.clear()

    @torch.no_grad()
    def own(self, parameter: nn.Parameter) -> None:
        """Make the gradient a view of the buffer: copied unless it is one already, zeros if there is none."""
        view = self.views[parameter]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad is not view:
            view.copy_(parameter.grad)
        parameter.grad = view
        if view.is_cuda:
            self._streams.add(torch.cuda.current_stream(view.device))

    def join(self) -> None:
        """Let the current stream wait for every stream that wrote a gradient."""
        for flat in self.flats:
            if flat.is_cuda:
                current = torch.cuda.current_stream(flat.device)
                for other in self._streams - {current}:
                    current.wait_stream(other)

    @torch.no_grad()
    def divide(self, by: int) -> None:
        """Divide all gradients, after every stream that wrote one of them."""
        self.join()
        for flat in self.flats:
            flat.div_(by)


def flat_buckets(groups: Sequence[Sequence[Slot]], chunks: Sequence[int]) -> list[FlatBucket]:
    """A bucket for each group.

    Args:
        groups: Slots in their order; pieces of a parameter follow each other, in one group or in several.
        chunks: Of each bucket, [groups].
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
    flats = {kind: _zeros(own) for kind, own in slots.items()}
    views = {p: view for kind, own in slots.items() for p, view in _views(flats[kind], own).items()}
    starts = dict.fromkeys(flats, 0)
    for group in chain:
        kinds = _by_kind(group)
        parts = []
        for kind, own in kinds.items():
            end = starts[kind] + sum(slot.elements for slot in own)
            parts.append(flats[kind][starts[kind] : end])
            starts[kind] = end
        yield FlatBucket(list(kinds.values()), parts, views, next(chunks))


def _by_kind(slots: Iterable[Slot]) -> dict[Any, list[Slot]]:
    found: dict[Any, list[Slot]] = defaultdict(list)
    for slot in slots:
        found[slot.kind].append(slot)
    return found


def _zeros(slots: Sequence[Slot]) -> Tensor:
    first = slots[0].parameter
    return torch.zeros(sum(slot.elements for slot in slots), dtype=first.dtype, device=first.device)


def _views(flat: Tensor, slots: Sequence[Slot]) -> dict[nn.Parameter, Tensor]:
    """Gradients in a buffer, each from its first slot on."""
    found: dict[nn.Parameter, Tensor] = {}
    start = 0
    for slot in slots:
        parameter = slot.parameter
        if parameter not in found and parameter.dim() == 4 and _channels_last(parameter):
            found[parameter] = flat.as_strided(parameter.size(), parameter.stride(), start)
        elif parameter not in found:
            found[parameter] = flat[start : start + parameter.numel()].view(parameter.shape)
        start += slot.elements
    return found


def _channels_last(parameter: nn.Parameter) -> bool:
    return parameter.is_contiguous(memory_format=torch.channels_last)
