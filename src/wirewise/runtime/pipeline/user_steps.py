"""Optimizer calls in scripts that a pipeline makes itself, refused by name where they would do nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline.dtensors import plain_names
from wirewise.runtime.pipeline.weights import Weights
from wirewise.runtime.stage_gradients import GradientScope

__all__ = ["check_steps", "mark_gradients_taken", "scope_of_position"]

_HARMLESS = {"__get__", "__set__", "detach", "detach_", "requires_grad_", "zero_"}
"""Attributes, and what `zero_grad` does."""


def scope_of_position(plan: StagePlan, position: int, weights: Weights) -> GradientScope | None:
    """Scope of a rank's parameters among those of all stages. None if it has all stages."""
    if len(plan.ranks) == 1:
        return None
    return GradientScope(
        position,
        len(weights.named),
        "Pipeline(clip=..., loss_scale=...), which look at the gradients of all stages, and optimizers that look at "
        "each parameter by itself",
    )


def check_steps(steppers: Iterable[Any]) -> None:
    """Raise InputError for optimizers that need a closure, and schedules that need a loss."""
    for stepper in steppers:
        # The step of the class: that of the object may be wrapped, as schedules do with their optimizer's.
        _, *taken = inspect.signature(type(stepper).step).parameters.items()
        wanted = [
            name
            for name, parameter in taken
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if wanted:
            raise InputError(
                f"{type(stepper).__name__}.step takes {wanted[0]!r}, and a pipeline steps once an update with nothing "
                "but gradients; expected an optimizer without a closure and a schedule without a loss: change the "
                "learning rate between two results of train, by the optimizer's param_groups"
            )


@contextmanager
def mark_gradients_taken(weights: Weights) -> Iterator[None]:
    """Mark gradients, while a script may look at them between two updates, as used by the update.

    Gradients of microbatches of the next update, already started in pipelines without flushes, are kept.
    """
    named = (weights.named[name] for name in plain_names(weights.named))
    trained = [parameter for parameter in named if parameter.grad is None]
    for parameter in trained:
        parameter.grad = _Taken.of(parameter)
    try:
        yield
    finally:
        for parameter in trained:
            if isinstance(parameter.grad, _Taken):
                parameter.grad = None


class _Taken(Tensor):
    """Placeholder of a gradient that an update has taken, without memory."""

    @classmethod
    def of(cls, parameter: nn.Parameter) -> Tensor:
        """Make a placeholder for the gradient of a parameter."""
        taken = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        return taken.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name.endswith("_") and name in _HARMLESS:
                return args[0]
            if name in _HARMLESS:
                return function(*args, **(kwargs or {}))
        raise InputError(
            f"torch.{name} got the gradient of a parameter of a pipeline after its update, which has taken and dropped "
            "it; expected Pipeline(clip=..., loss_scale=..., schedule=...) for what is done before a step, or a step "
            "hook of the optimizer"
        )
