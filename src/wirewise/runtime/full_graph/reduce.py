"""Sum of gradients over ranks, in buckets that travel while back-propagation still runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.runtime.transport import Transport

__all__ = ["GradientReducer"]


class GradientReducer:
    """All-reduces the gradients of `parameters` by sum, bucket by bucket.

    Gradients are views of flat buckets in reverse parameter order, so nothing is copied (unless an optimizer
    set them to None meanwhile). A bucket starts to travel when its last gradient is ready and every earlier
    bucket has started: all ranks start them in one order, also when a rank has no use for some parameter. The
    loss is summed beside them, in its own type.

    Args:
        average: Divide the sums by the number of ranks.
        bits: 32: gradients travel as they are. 16: those of float32 are rounded to bfloat16, sent and summed so.
        bucket_bytes: A bucket is closed when it holds at least so many bytes.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        transport: Transport,
        *,
        average: bool = False,
        bits: int = 32,
        bucket_bytes: int = 1 << 18,
    ):
        self.transport, self.average, self.bits = transport, average, bits
        self._parameters = [p for p in reversed(list(parameters)) if p.requires_grad]
        self._flat: list[Tensor] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._views: dict[nn.Parameter, Tensor] = {}
        self._missing: list[int] = []
        self._expected: list[int] = []
        self._wire: list[Tensor] = []
        self._loss = torch.zeros(1)
        self._works: list[dist.Work] = []
        self._loss_work: dist.Work | None = None
        for group in self._groups(bucket_bytes):
            self._add_bucket(group)
        self.active = False
        """Between `begin` and `finish`; gradients of other back-propagations are left alone."""
        self._kept: dict[nn.Parameter, Tensor] = {}
        self._handles = [p.register_post_accumulate_grad_hook(self._ready) for p in self._parameters]

    def _groups(self, bucket_bytes: int) -> list[list[nn.Parameter]]:
        groups: list[list[nn.Parameter]] = [[]]
        size = 0
        for parameter in self._parameters:
            if size >= bucket_bytes or (groups[-1] and groups[-1][0].dtype != parameter.dtype):
                groups.append([])
                size = 0
            groups[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        return groups

    def _add_bucket(self, group: list[nn.Parameter]) -> None:
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
        start = 0
        for parameter in group:
            self._views[parameter] = flat[start : start + parameter.numel()].view_as(parameter)
            parameter.grad = self._views[parameter]
            start += parameter.numel()
            self._bucket_of[parameter] = len(self._flat)
        self._flat.append(flat)
        rounded = self.bits == 16 and flat.dtype == torch.float32 and self.transport.world_size > 1
        self._wire.append(torch.empty_like(flat, dtype=torch.bfloat16) if rounded else flat)
        self._expected.append(len(group))

    def begin(self, loss: Tensor | float = 0.0, *, accumulate: bool = False) -> None:
        """Prepare for a back-propagation.

        Args:
            loss: This rank's share of the loss.
            accumulate: Add the new sums to the gradients that are there now; else those are cleared.
        """
        self.active = True
        self._kept = {}
        if accumulate:
            self._set_aside()
        for flat in self._flat:
            flat.zero_()
        self._missing = list(self._expected)
        self._works = []
        if isinstance(loss, Tensor):
            self._loss = loss.detach().clone().view(1)
        elif self._flat:
            self._loss = self._flat[0].new_tensor([loss])
        if self.transport.world_size > 1:
            self._loss_work = self._start(self._loss)

    def _set_aside(self) -> None:
        """Keep the gradients that are there, which were summed over ranks already."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                self._kept[parameter] = parameter.grad.detach().clone()
                parameter.grad = self._views[parameter]

    def _ready(self, parameter: nn.Parameter) -> None:
        if not self.active:
            return
        self._own_gradient(parameter)
        self._missing[self._bucket_of[parameter]] -= 1
        if self.transport.world_size == 1:
            return
        while len(self._works) < len(self._flat) and self._missing[len(self._works)] == 0:
            self._launch()

    def _own_gradient(self, parameter: nn.Parameter) -> None:
        view = self._views[parameter]
        if parameter.grad is not view and parameter.grad is not None:
            view.copy_(parameter.grad)
        parameter.grad = view

    def _launch(self) -> None:
        number = len(self._works)
        if self._wire[number] is not self._flat[number]:
            self._wire[number].copy_(self._flat[number])
        self._works.append(self._start(self._wire[number]))

    def _start(self, tensor: Tensor) -> dist.Work:
        started: list[dist.Work] = []
        self.transport.guard(lambda: started.append(self.transport.group.allreduce([tensor])), "all-reduce")
        return started[0]

    def finish(self) -> float:
        """Wait for all buckets; returns the loss summed over ranks.

        Raises:
            PeerError: A peer is gone.
        """
        self.active = False
        for parameter in self._parameters:
            self._own_gradient(parameter)
        if self.transport.world_size > 1:
            while len(self._works) < len(self._flat):
                self._launch()
            assert self._loss_work is not None
            for work in [self._loss_work, *self._works]:
                self.transport.wait_for(work, "the gradient all-reduce")
            for flat, wire in zip(self._flat, self._wire, strict=True):
                if wire is not flat:
                    flat.copy_(wire)
                if self.average:
                    flat.div_(self.transport.world_size)
        for parameter, kept in self._kept.items():
            self._views[parameter].add_(kept)
        self._kept = {}
        return float(self._loss)

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for handle in self._handles:
            handle.remove()
