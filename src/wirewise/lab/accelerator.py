"""Virtual accelerators: modules with real parameters and gradients whose computing time is slept.

Hooks, buckets, process groups and links are real, only the arithmetic is not, so eight ranks fit on two cores.
Whatever is measured with them is *emulated* and must be labelled so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wirewise.errors import LabError

__all__ = ["VirtualLayer", "VirtualModel"]


class VirtualLayer(nn.Module):
    """A layer of `num_parameters` weights that takes `forward_s` and `backward_s` seconds.

    The output is the input times one plus the mean of the weights, so that gradients reach
    every weight. The gradient of the weights is ready `backward_s` after that of the output.
    """

    def __init__(self, num_parameters: int, *, forward_s: float, backward_s: float) -> None:
        super().__init__()
        if num_parameters < 1 or forward_s < 0 or backward_s < 0:
            raise LabError(
                f"got {num_parameters} parameters, {forward_s} s forward, {backward_s} s backward; "
                "expected at least one parameter and times of at least 0"
            )
        self.weight = nn.Parameter(torch.zeros(num_parameters))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        result: Tensor = _Slept.apply(x, self.weight, self.forward_s, self.backward_s)
        return result


class VirtualModel(nn.Sequential):
    """A stack of virtual layers.

    Args:
        layers: For each layer (number of parameters, forward seconds, backward seconds).
    """

    def __init__(self, layers: Sequence[tuple[int, float, float]]) -> None:
        super().__init__(*(VirtualLayer(n, forward_s=f, backward_s=b) for n, f, b in layers))


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x * (1.0 + weight.sum() / weight.numel())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        time.sleep(ctx.backward_s)
        count = weight.numel()
        return grad * (1.0 + weight.sum() / count), ((grad * x).sum() / count).expand_as(weight).clone(), None, None
