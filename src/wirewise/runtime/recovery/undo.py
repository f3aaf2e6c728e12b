"""Inverse steps of optimizers: from parameters and state after an update back to those before it (SWIFT, 2023).

The inputs of an update are kept (`capture_update`): the gradient after averaging, unscaling, clipping, sign and L2
weight decay, the settings of its group, and which state there was. With the decayed gradient at hand no inverse divides
by 1 - lr * weight_decay but those of decoupled weight decay. Inverses are computed in float64; what remains is
the rounding of the step itself, so an undone update is close, never bit-equal (`consistency` has exact ways).

| optimizer | inverse, in this order, with d the kept gradient |
|---|---|
| SGD | p + lr d |
| SGD with momentum | p + lr b (Nesterov: p + lr (d + momentum b)); b = (b - (1 - dampening) d) / momentum |
| Adam | p + lr/c1 m / (sqrt(v/c2) + eps); v = (v - (1 - beta2) d²) / beta2; m = (m - (1 - beta1) d) / beta1 |
| AdamW | as Adam, then p / (1 - lr weight_decay) |
| Adagrad | p + lr/(1 + (t - 1) lr_decay) d / (sqrt(s) + eps); s - d² |
| RMSprop | p + lr d / D, or p + lr b and b = (b - d / D) / momentum; s = (s - (1 - alpha) d²) / alpha |

State that the update made first is removed. Optimizers of one's own take part by the protocol `InvertibleOptimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop, SparseAdam

from wirewise.errors import InputError

__all__ = [
    "AppliedUpdate",
    "InvertibleOptimizer",
    "PreUpdateState",
    "capture_update",
    "check_undo",
    "group_settings",
    "restore_parameter",
    "undo",
    "values_before",
]

_EXACT_TYPES = (torch.float32, torch.float64)


class AppliedUpdate(NamedTuple):
    """Inputs of one parameter's update."""

    gradient: Tensor
    """Copy of the gradient as it entered the update: negated if maximized, with L2 weight decay."""
    settings: dict[str, Any]
    """Settings of the parameter's group in this update, such as its learning rate."""
    known: frozenset[str]
    """Names of the state that the parameter had before."""


class PreUpdateState(NamedTuple):
    """Parameter and its state before an update, in float64, without `step` counts."""

    parameter: Tensor
    state: dict[str, Tensor]


@runtime_checkable
class InvertibleOptimizer(Protocol):
    """Custom optimizer whose updates can be undone, parameter by parameter."""

    def undo_refusal(self, settings: Mapping[str, Any]) -> str:
        """Reason why updates with these settings of a group cannot be undone; "" if they can."""
        ...

    def before_update(
        self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute parameter and state tensors before an update from those after it, in float64 and out of place.

        Args:
            parameter: Parameter after the update.
            gradient: Gradient passed to `step`, negated if the group has `maximize`.
            state: State of the parameter after the update; its tensors but "step" are float64, which counts the update.
            settings: Settings of the group during the update.
        """
        ...


def check_undo(optimizer: Optimizer) -> None:
    """Raise unless updates of an optimizer, with its current settings, can be undone.

    Raises:
        InputError: The updates cannot be undone; the message says why.
    """
    for group in optimizer.param_groups:
        reason = _refusal(optimizer, group)
        for parameter in group["params"]:
            if parameter.dtype not in _EXACT_TYPES:
                reason = reason or f"a parameter is {parameter.dtype}, not float32 or float64"
        if reason:
            raise InputError(
                f"updates of {type(optimizer).__name__} cannot be undone: {reason}; expected consistency='ping-pong', "
                "which keeps the values before each update and restores them bit by bit"
            )


def group_settings(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the settings of a group for the next update.

    Raises:
        InputError: Under these settings the update cannot be undone.
    """
    if reason := _refusal(optimizer, group):
        raise InputError(f"the next update of {type(optimizer).__name__} cannot be undone: {reason}")
    return {name: value for name, value in group.items() if name != "params"}


def capture_update(
    optimizer: Optimizer, parameter: Tensor, settings: dict[str, Any], memory: Tensor | None = None
) -> AppliedUpdate | None:
    """Capture the inputs of a parameter's next update, before it. None if it has no gradient, so no update.

    Args:
        optimizer: Optimizer that is about to step.
        parameter: One of its parameters, with its gradient.
        settings: Settings of its group (`group_settings`).
        memory: Tensor to copy the gradient to, if it fits.

    Raises:
        InputError: The gradient is sparse.
    """
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.is_sparse:
        raise InputError(
            f"the update of a parameter {list(parameter.shape)} cannot be undone: its gradient is sparse; make the "
            "module with sparse=False"
        )
    state = optimizer.state.get(parameter, {})
    known = frozenset(name for name, value in state.items() if value is not None)
    decay = 0 if settings.get("decoupled_weight_decay") else settings.get("weight_decay", 0)
    with torch.no_grad():
        fits = memory is not None and (memory.shape, memory.dtype) == (gradient.shape, gradient.dtype)
        taken = memory if memory is not None and fits else torch.empty_like(gradient)
        if settings.get("maximize"):
            torch.neg(gradient, out=taken)
            gradient = taken
        if decay != 0 and type(optimizer) in _RULES:
            torch.add(gradient, parameter, alpha=float(decay), out=taken)
        elif gradient is not taken:
            taken.copy_(gradient)
    return AppliedUpdate(taken, settings, known)


@torch.no_grad()
def values_before(optimizer: Optimizer, parameter: Tensor, update: AppliedUpdate) -> PreUpdateState:
    """Compute the values before the last update from those after it, out of place.

    Raises:
        InputError: The update cannot be undone.
    """
    state = {
        name: value.double() if isinstance(value, Tensor) and name != "step" else value
        for name, value in optimizer.state.get(parameter, {}).items()
    }
    gradient, settings = update.gradient.double(), update.settings
    if isinstance(optimizer, InvertibleOptimizer):
        return PreUpdateState(*optimizer.before_update(parameter.double(), gradient, state, settings))
    if type(optimizer) not in _RULES:
        check_undo(optimizer)
    return PreUpdateState(*_RULES[type(optimizer)](parameter.double(), gradient, state, settings))


@torch.no_grad()
def restore_parameter(
    optimizer: Optimizer, parameter: Tensor, update: AppliedUpdate, values: PreUpdateState
) -> None:
    """Write the values before an update, and remove the state that the update created."""
    parameter.copy_(values.parameter)
    state = optimizer.state[parameter]
    for name in list(state):
        if name not in update.known:
            del state[name]
        elif name == "step":
            state[name] -= 1
        elif name in values.state:
            state[name].copy_(values.state[name])
    if not state:
        del optimizer.state[parameter]


def undo(optimizer: Optimizer, parameter: Tensor, update: AppliedUpdate) -> None:
    """Undo the last update of a parameter.

    Raises:
        InputError: The update cannot be undone; nothing is changed then.
    """
    restore_parameter(optimizer, parameter, update, values_before(optimizer, parameter, update))


def _refusal(optimizer: Optimizer, group: Mapping[str, Any]) -> str:
    """Why updates of a group cannot be undone; "" if they can."""
    kind = type(optimizer)
    if isinstance(optimizer, InvertibleOptimizer):
        return optimizer.undo_refusal(group)
    if kind in (Adamax, SparseAdam):
        return _LOST[kind]
    if kind not in _RULES:
        known = f"{_names()}, and classes with the methods of InvertibleOptimizer"
        return f"no inverse is known for this class; known are {known}"
    if group.get("amsgrad"):
        return "AMSGrad keeps the larger of two values and so loses the smaller one"
    if group.get("differentiable"):
        return "differentiable=True keeps a graph of the update"
    if group.get("centered"):
        return "centered=True divides by a difference in which rounding errors are all that may be left"
    betas = {f"betas[{i}]": float(beta) for i, beta in enumerate(group.get("betas", ()))}
    for name, value in betas.items() | {(name, group[name]) for name in ("alpha",) if name in group}:
        if value == 0:
            return f"{name} is 0, so that nothing is left of the average before"
    if group.get("decoupled_weight_decay") and 1 - float(group["lr"]) * float(group["weight_decay"]) == 0:
        return "1 - lr * weight_decay is 0, so that nothing is left of the parameter before"
    return ""


_LOST: dict[type[Optimizer], str] = {
    Adamax: "Adamax keeps the larger of two values and so loses the smaller one",
    SparseAdam: "its gradients are sparse",
}


def _names() -> str:
    return ", ".join(kind.__name__ for kind in _RULES)


_State = Mapping[str, Any]
_Inverse = Callable[[Tensor, Tensor, _State, Mapping[str, Any]], tuple[Tensor, dict[str, Tensor]]]


def _sgd(p: Tensor, d: Tensor, state: _State, of: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    lr, momentum = float(of["lr"]), of["momentum"]
    if momentum == 0:
        # A buffer of steps before is left alone by such a step.
        return p + lr * d, {}
    b = state["momentum_buffer"]
    p = p + lr * (d + momentum * b if of["nesterov"] else b)
    return p, {"momentum_buffer": (b - (1 - of["dampening"]) * d) / momentum}


def _adam(p: Tensor, d: Tensor, state: _State, of: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    beta1, beta2 = map(float, of["betas"])
    lr, m, v, t = float(of["lr"]), state["exp_avg"], state["exp_avg_sq"], float(state["step"])
    scale = (v / (1 - beta2**t)).sqrt() + of["eps"]
    p = p + lr / (1 - beta1**t) * m / scale
    if of.get("decoupled_weight_decay"):
        p = p / (1 - lr * float(of["weight_decay"]))
    return p, {"exp_avg": (m - (1 - beta1) * d) / beta1, "exp_avg_sq": _nonnegative(v, beta2, 1 - beta2, d)}


def _adagrad(p: Tensor, d: Tensor, state: _State, of: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    s = state["sum"]
    rate = float(of["lr"]) / (1 + (float(state["step"]) - 1) * of["lr_decay"])
    return p + rate * d / (s.sqrt() + of["eps"]), {"sum": _nonnegative(s, 1.0, 1.0, d)}


def _rmsprop(p: Tensor, d: Tensor, state: _State, of: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    lr, alpha, momentum, s = float(of["lr"]), of["alpha"], of["momentum"], state["square_avg"]
    step = d / (s.sqrt() + of["eps"])
    found = {"square_avg": _nonnegative(s, alpha, 1 - alpha, d)}
    if momentum > 0:
        b = state["momentum_buffer"]
        return p + lr * b, found | {"momentum_buffer": (b - step) / momentum}
    return p + lr * step, found


def _nonnegative(after: Tensor, kept: float, share: float, d: Tensor) -> Tensor:
    """A mean or sum of squares before; rounding must not take it below 0."""
    return ((after - share * d.square()) / kept).clamp_(min=0.0)


_RULES: dict[type[Optimizer], _Inverse] = {
    SGD: _sgd,
    Adam: _adam,
    AdamW: _adam,
    Adagrad: _adagrad,
    RMSprop: _rmsprop,
}
