"""Virtual accelerators: modules with real parameters and gradients whose computing time is slept.

Hooks, buckets, process groups and links are real, only the arithmetic is not, so eight ranks fit on two
cores. Whatever is measured with them is *emulated* and must be labelled so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from wirewise.errors import LabError

__all__ = ["PacedProducts", "VirtualAccelerator", "VirtualLayer"]

_LEAST_SLEEP_S = 5e-4


class VirtualLayer(nn.Module):
    """A layer of `num_parameters` weights that takes `forward_s` and `backward_s` seconds.

    The output is the input times one plus the mean of the weights, so that gradients reach every weight and
    training changes them. The gradient of the weights is ready `backward_s` after that of the output.

    Raises:
        LabError: There is no parameter, or a time is below zero or not finite.
    """

    def __init__(self, num_parameters: int, *, forward_s: float, backward_s: float) -> None:
        super().__init__()
        if num_parameters < 1 or not all(0 <= s < float("inf") for s in (forward_s, backward_s)):
            raise LabError(
                f"got {num_parameters} parameters, {forward_s} s forward, {backward_s} s backward; "
                "expected at least one parameter and finite times of at least 0"
            )
        self.weight = nn.Parameter(torch.zeros(num_parameters))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        slept: Any = _Slept
        result: Tensor = slept.apply(x, self.weight, self.forward_s, self.backward_s)
        return result


class VirtualAccelerator(nn.Sequential):
    """A stack of virtual layers: a network as an accelerator would run it.

    Args:
        layers: Number of parameters, forward seconds and backward seconds of each layer.
    """

    def __init__(self, layers: Sequence[tuple[int, float, float]]) -> None:
        super().__init__(*(VirtualLayer(n, forward_s=f, backward_s=b) for n, f, b in layers))

    @classmethod
    def uniform(
        cls, num_layers: int, num_parameters: int, *, forward_s: float, backward_s: float
    ) -> VirtualAccelerator:
        """Equal layers that share out the given totals of parameters and seconds.

        Raises:
            LabError: There are fewer parameters than layers, or no layer.
        """
        if not 1 <= num_layers <= num_parameters:
            raise LabError(
                f"got {num_layers} layers and {num_parameters} parameters; expected at least one layer, "
                "and a parameter for each"
            )
        share, rest = divmod(num_parameters, num_layers)
        times = (forward_s / num_layers, backward_s / num_layers)
        return cls([(share + (number < rest), *times) for number in range(num_layers)])


class PacedProducts(TorchDispatchMode):
    """Products and convolutions that take as long as on an accelerator of some speed; the numbers are real.

    An operator runs, and then the rest of its time is slept, so whatever computes in this context is paced alike:
    modules, their backward passes, captured graphs.

    Args:
        flops_per_s: Floating-point operations a second of the accelerator.

    Raises:
        LabError: A speed that is none.
    """

    def __init__(self, flops_per_s: float) -> None:
        super().__init__()
        if not 0 < flops_per_s < float("inf"):
            raise LabError(f"flops_per_s is {flops_per_s}; expected a finite number above 0")
        self._flops_per_s, self._due_s = flops_per_s, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and sleep what is left of its time."""
        start_s = time.perf_counter()
        found = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            flops = count(*_local(args), **_local(kwargs or {}), out_val=_local(found))
            self._due_s += flops / self._flops_per_s - (time.perf_counter() - start_s)
            # Short sleeps are longer than they should be.
            if self._due_s > _LEAST_SLEEP_S:
                before_s = time.perf_counter()
                time.sleep(self._due_s)
                self._due_s -= time.perf_counter() - before_s
            self._due_s = max(self._due_s, -_LEAST_SLEEP_S)
        return found


def _local(value: Any) -> Any:
    """What this rank has of DTensors, anywhere in arguments."""
    return tree_map(lambda one: getattr(one, "_local_tensor", one), value)


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x * (1.0 + weight.mean())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        time.sleep(ctx.backward_s)
        to_weight = torch.full_like(weight, float((grad * x).sum()) / weight.numel())
        return grad * (1.0 + weight.mean()), to_weight, None, None
