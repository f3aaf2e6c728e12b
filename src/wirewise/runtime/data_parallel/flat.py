"""The gradients of a bucket, one behind the other in memory."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

__all__ = ["FlatBucket"]


class FlatBucket:
    """Gradients as views of flat buffers, one buffer for each type and device.

    Args:
        parameters: By name, in the order in which their gradients lie in memory.
        chunks: Pieces of about equal size that the bucket travels in.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], chunks: int = 1) -> None:
        self.parameters = parameters
        self.views: dict[nn.Parameter, Tensor] = {}
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters.values():
            kinds[parameter.dtype, parameter.device].append(parameter)
        self.flats = [self._flat(group) for group in kinds.values()]
        """1-D buffers."""
        self.members = list(kinds.values())
        """Parameters in each of the buffers, in its order."""
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

    def _flat(self, group: list[nn.Parameter]) -> Tensor:
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
        start = 0
        for parameter in group:
            if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
                view = flat.as_strided(parameter.size(), parameter.stride(), start)
            else:
                view = flat[start : start + parameter.numel()].view(parameter.shape)
            self.views[parameter] = view
            start += parameter.numel()
        return flat

    def begin(self) -> None:
        """All gradients are missing."""
        self.missing = set(self.parameters.values())
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
