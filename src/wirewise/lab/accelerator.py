"""Virtual accelerators: modules with real parameters and gradients whose compute time is slept.

Hooks, buckets, process groups and links are real, only the arithmetic is not, so eight ranks fit on two cores.
Measurements with them are *emulated* and must be labelled so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from wirewise.errors import LabError
from wirewise.sim.operator_times import VIEW_OPS, DeviceFigures

__all__ = ["PacedOperators", "VirtualAccelerator", "VirtualLayer"]

_LEAST_SLEEP_S = 5e-4
_IDLE_S = 2e-3
"""Seconds without an operator after which a device has nothing to make up for."""
_ATTENTION: dict[Any, tuple[Any, int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}
"""Attention on the CPU, which torch's registry lacks, and how many of the arguments count."""


class VirtualLayer(nn.Module):
    """Layer of `num_parameters` weights that takes `forward_s` and `backward_s` seconds.

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
        """Return an output of the shape of `x`, after `forward_s` seconds."""
        slept: Any = _Slept
        result: Tensor = slept.apply(x, self.weight, self.forward_s, self.backward_s)
        return result


class VirtualAccelerator(nn.Sequential):
    """Stack of virtual layers, with the timing of a network on an accelerator.

    Args:
        layers: Number of parameters, forward seconds and backward seconds of each layer.
    """

    def __init__(self, layers: Sequence[tuple[int, float, float]]) -> None:
        super().__init__(*(VirtualLayer(n, forward_s=f, backward_s=b) for n, f, b in layers))

    @classmethod
    def uniform(
        cls, num_layers: int, num_parameters: int, *, forward_s: float, backward_s: float
    ) -> VirtualAccelerator:
        """Equal layers that divide the given totals of parameters and seconds.

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


class PacedOperators(TorchDispatchMode):
    """Mode in which operators take as long as on an accelerator of a given speed; results are real.

    An operator runs, and then the rest of its time is slept, so everything in this context is paced: modules, their
    backward passes, captured graphs, optimizers. Times are those of `sim.operator_times` for the tensors of each
    call; views take none. Lateness is made up for by later operators; idle time, as when a rank waits for others, is
    not.

    Args:
        figures: Achieved speeds of the accelerator.

    Raises:
        LabError: A speed is invalid.
    """

    def __init__(self, figures: DeviceFigures) -> None:
        super().__init__()
        if not all(0 < rate < inf for rate in figures[:3]) or not 0 <= figures.launch_s < inf:
            raise LabError(f"got {figures}; expected finite rates above 0 and a launch of at least 0 seconds")
        self._figures = figures
        self._free_s = self._ended_s = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and sleep what is left of its time."""
        kwargs, start_s = kwargs or {}, time.perf_counter()
        found = func(*args, **kwargs)
        if func.namespace != "aten" or str(func) in VIEW_OPS:
            return found
        if start_s - self._ended_s > _IDLE_S:
            self._free_s = start_s
        self._free_s += self._seconds(func, _local(args), _local(kwargs), _local(found))
        left_s = self._free_s - time.perf_counter()
        # Short sleeps are longer than they should be.
        if left_s > _LEAST_SLEEP_S:
            time.sleep(left_s)
        self._ended_s = time.perf_counter()
        return found

    def _seconds(self, func: Any, args: Any, kwargs: Any, found: Any) -> float:
        made = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        moved = sum(one.numel() * one.element_size() for one in (*given, *made))
        return self._figures.seconds(
            _flops(func, args, kwargs, found), moved, made[0].element_size() if made else 4
        )


def _flops(func: Any, args: Any, kwargs: Any, found: Any) -> float:
    packet = func.overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=found))
    if packet in _ATTENTION:
        count, tensors = _ATTENTION[packet]
        return float(count(*(one.shape for one in args[:tensors])))
    return 0.0


def _local(value: Any) -> Any:
    """Local part of DTensors, anywhere in arguments."""
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
