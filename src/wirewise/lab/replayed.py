"""Models made from gradient traces: real parameters and gradients, with slept compute time.

A recorded model has hundreds of gradients that follow each other within microseconds, far below the resolution of a
sleep. Time is therefore accumulated as debt: gaps add up until they are worth a sleep, and oversleep is subtracted
from later gaps. Work of hooks between two gradients, such as encoding, comes on top.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from wirewise.errors import LabError
from wirewise.trace.gradients import GradientTrace

__all__ = ["ReplayedModel", "scale_trace"]

_LEAST_S = 200e-6
"""Shortest sleep: it lasts about 60 us too long, which is then a small part of it."""
_SPARE = 65_536
"""Values of noise beyond the largest gradient, so that steps differ."""


def scale_trace(trace: GradientTrace, by: int) -> GradientTrace:
    """Trace with 1/`by` of each gradient's elements, at least one, and unchanged times.

    Raises:
        LabError: `by` is below 1.
    """
    if by < 1:
        raise LabError(f"scale is {by}; expected a whole number of at least 1, which divides the elements")
    tensors = tuple(msgspec.structs.replace(t, elements=max(1, t.elements // by)) for t in trace.tensors)
    return msgspec.structs.replace(trace, tensors=tensors)


class ReplayedModel(nn.Module):
    """Model whose gradients get ready at a trace's times; parameters have the trace's names and are 1-D.

    Gradients are noise that differs between ranks and steps, because codec times depend on the values.

    Args:
        trace: Gradients in the order of back-propagation.
        forward_share: Forward time, as a fraction of back-propagation time.
        seed: Seed of the noise, such as the rank.

    Raises:
        LabError: The fraction is negative or not finite, or a name is that of a module and of a parameter.
    """

    def __init__(self, trace: GradientTrace, *, forward_share: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= forward_share < float("inf"):
            raise LabError(f"forward_share is {forward_share}; expected a finite share of at least 0")
        self._gaps_s = [1e-6 * t.gap_us for t in trace.tensors]
        self._forward_s = forward_share * sum(self._gaps_s)
        self._ordered = [_place(self, t.name, t.elements) for t in trace.tensors]
        largest = max(t.elements for t in trace.tensors)
        self._noise = torch.randn(largest + _SPARE, generator=torch.Generator().manual_seed(seed))
        self._owed_s, self._steps = 0.0, 0

    def forward(self, x: Tensor) -> Tensor:
        """Return an output of the shape and values of `x`."""
        self._owed_s, self._steps = 0.0, self._steps + 1
        self._spend(self._forward_s, time.perf_counter())
        ready: Any = _Ready
        for place in reversed(range(len(self._ordered))):
            x = ready.apply(x, self._ordered[place], self, place)
        return x

    def _gradient(self, place: int) -> Tensor:
        """The next gradient, once its time has come."""
        since_s, size = time.perf_counter(), self._ordered[place].numel()
        start = (7_919 * self._steps + place) % (len(self._noise) - size + 1)
        found = self._noise[start : start + size] * 1e-3
        self._spend(self._gaps_s[place], since_s)
        return found

    def _spend(self, due_s: float, since_s: float) -> None:
        """Let time go by until `due_s` after `since_s`, or owe it."""
        now_s = time.perf_counter()
        self._owed_s += due_s - (now_s - since_s)
        if self._owed_s >= _LEAST_S:
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - now_s


def _place(model: nn.Module, name: str, elements: int) -> nn.Parameter:
    """Register a parameter under its dotted name."""
    *path, last = name.split(".")
    try:
        for word in path:
            if word not in model._modules:
                model.add_module(word, nn.Module())
            model = model.get_submodule(word)
        model.register_parameter(last, nn.Parameter(torch.zeros(elements)))
    except (KeyError, AttributeError) as cause:
        raise LabError(f"no parameter can be called {name!r}: {cause}; rename it in the trace") from cause
    return model.get_parameter(last)


class _Ready(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, model: ReplayedModel, place: int) -> Tensor:
        ctx.model, ctx.place = model, place
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return grad, ctx.model._gradient(ctx.place), None, None
