"""Invertible optimizers that torch does not have: `Lamb` and `Lion`.

Both keep with each parameter the data of the last update that its inverse needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirewise.errors import InputError

__all__ = ["Lamb", "Lion"]


class _Decoupled(Optimizer):
    """Shared settings of both, and the inverse of decoupled weight decay.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate of all parameters.
        betas: Shares that averages keep of their values before.
        weight_decay: Fraction of a parameter, times lr, that each step takes away.
        maximize: Whether the gradient is followed upwards.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], weight_decay: float, **rest: Any
    ) -> None:
        if not (lr >= 0 and weight_decay >= 0 and all(0 < beta < 1 for beta in betas)):
            raise InputError(
                f"got lr={lr}, betas={betas} and weight_decay={weight_decay}; expected numbers of at least 0, and "
                "betas between 0 and 1"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, **rest})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient; returns what the closure does.

        Args:
            closure: Computes the loss and its gradients first.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.neg() if group["maximize"] else parameter.grad
                    self._update(parameter, gradient, self.state[parameter], group)
        return loss

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], of: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def undo_refusal(self, settings: Mapping[str, Any]) -> str:
        """Why updates with these settings cannot be taken back; "" if they can."""
        return ""


class Lamb(_Decoupled):
    """Adam whose step is scaled per tensor by the ratio of the tensor's norm to the step's (You et al., ICLR 2020).

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate of all parameters.
        betas: Decay rates of the averages of gradients and of their squares.
        eps: Term added to the root of the mean of squares.
        weight_decay: Decoupled weight decay, within the scaled step.
        maximize: Whether to maximise the objective.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay, eps=eps, maximize=maximize)

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], of: Mapping[str, Any]) -> None:
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        (beta1, beta2), m, v = of["betas"], state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        step = _adam_step(m, v, state["step"], of).add_(p, alpha=of["weight_decay"])
        sizes = p.norm(), step.norm()
        ratio = sizes[0] / sizes[1] if all(size > 0 for size in sizes) else torch.ones_like(sizes[0])
        state["trust_ratio"] = ratio
        p.sub_(step.mul_(ratio * of["lr"]))

    def before_update(
        self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Parameter and averages before the last update (`recovery.InvertibleOptimizer`).

        Raises:
            InputError: 1 - lr * trust ratio * weight_decay was 0.
        """
        (beta1, beta2), m, v = settings["betas"], state["exp_avg"], state["exp_avg_sq"]
        rate = settings["lr"] * float(state["trust_ratio"])
        left = 1 - rate * settings["weight_decay"]
        if left == 0:
            raise InputError(
                f"the update of a parameter {list(parameter.shape)} by Lamb cannot be undone: lr * trust ratio * "
                "weight_decay was 1; take its value from another rank"
            )
        parameter = (parameter + rate * _adam_step(m, v, state["step"], settings)) / left
        return parameter, {
            "exp_avg": (m - (1 - beta1) * gradient) / beta1,
            "exp_avg_sq": ((v - (1 - beta2) * gradient.square()) / beta2).clamp_(min=0.0),
        }


def _adam_step(m: Tensor, v: Tensor, t: int, of: Mapping[str, Any]) -> Tensor:
    beta1, beta2 = of["betas"]
    return (m / (1 - beta1**t)).div_((v / (1 - beta2**t)).sqrt_().add_(of["eps"]))


class Lion(_Decoupled):
    """Steps of constant length along the sign of an average of gradients (Chen et al., NeurIPS 2023).

    The signs of the last update are kept, one byte per element, as they cannot be recomputed if average and gradient
    cancel to a rounding error.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate of all parameters.
        betas: Weight of the average in the direction, and its decay rate.
        weight_decay: Fraction of a parameter, times lr, subtracted in each step.
        maximize: Whether to maximise the objective.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay, maximize=maximize)

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], of: Mapping[str, Any]) -> None:
        if not state:
            state.update(exp_avg=torch.zeros_like(p), sign=torch.zeros_like(p, dtype=torch.int8))
        (beta1, beta2), m = of["betas"], state["exp_avg"]
        sign = torch.lerp(m, g, 1 - beta1).sign_()
        state["sign"].copy_(sign)
        p.mul_(1 - of["lr"] * of["weight_decay"]).sub_(sign, alpha=of["lr"])
        m.lerp_(g, 1 - beta2)

    def before_update(
        self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Parameter and average before the last update (`recovery.InvertibleOptimizer`)."""
        (_, beta2), lr = settings["betas"], settings["lr"]
        parameter = (parameter + lr * state["sign"]) / (1 - lr * settings["weight_decay"])
        return parameter, {"exp_avg": (state["exp_avg"] - (1 - beta2) * gradient) / beta2}

    def undo_refusal(self, settings: Mapping[str, Any]) -> str:
        """Reason why updates with these settings cannot be undone; "" if they can."""
        if 1 - settings["lr"] * settings["weight_decay"] == 0:
            return "1 - lr * weight_decay is 0, so that nothing is left of the parameter before"
        return ""
