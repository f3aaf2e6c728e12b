"""Norms and loss scaling of gradients sharded over meshes and stages."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from wirewise.errors import InputError
from wirewise.runtime.transport import Transport

__all__ = ["GradScaler", "clip_gradients"]


@torch.no_grad()
def clip_gradients(
    model: nn.Module,
    world: Transport,
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Clip all gradients to a total norm, as `torch.nn.utils.clip_grad_norm_` does in one process.

    Args:
        model: Model whose parameters are DTensors on this rank's mesh.
        world: Messages between all ranks of the plan.
        max_norm: Maximum norm of the gradients of all meshes and stages together.
        norm_type: Exponent of the norm, above 0; infinity for the maximum norm.
        error_if_nonfinite: Whether to raise if the norm is not finite.

    Returns:
        The norm before clipping, a scalar, the same on all ranks.

    Raises:
        InputError: The norm or exponent is not positive, or the norm is not finite and that is an error.
        PeerError: A peer is gone.
    """
    if not max_norm > 0 or not norm_type > 0:
        raise InputError(f"max_norm is {max_norm}, norm_type {norm_type}; expected both above 0")
    norm = _norm(model, world, norm_type)
    if error_if_nonfinite and not norm.isfinite():
        raise InputError(
            f"the norm of the gradients is {float(norm)}, so they cannot be clipped; look for what overflowed, or give "
            "error_if_nonfinite=False to scale them nevertheless"
        )
    factor = float((max_norm / (norm + 1e-6)).clamp(max=1.0))
    for local, _ in _parts(model):
        local.mul_(factor)
    return norm.float()


def _norm(model: nn.Module, world: Transport, norm_type: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    if norm_type == inf:
        for local, _ in _parts(model):
            if local.numel():
                total = torch.maximum(total, local.abs().max().double().cpu())
        world.all_reduce(total, "the norm of the gradients", dist.ReduceOp.MAX)
        return total
    for local, copies in _parts(model):
        total += local.double().abs().pow(norm_type).sum().cpu() / copies
    world.all_reduce(total, "the norm of the gradients")
    return total ** (1.0 / norm_type)


def _parts(model: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """This rank's part of each gradient, and the number of ranks that have the same."""
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            copies = prod(mesh.size(n) for n, one in enumerate(gradient.placements) if one.is_replicate())
            yield gradient._local_tensor, copies
        elif gradient is not None:
            yield gradient, 1


class GradScaler(torch.amp.GradScaler):
    """Loss scaler of a `ParallelModel`: all ranks skip an update if a gradient of any overflowed.

    Used as torch's own: `scale(loss).backward()`, `unscale_(optimizer)` before clipping, `step(optimizer)`, `update()`.

    Args:
        model: Model whose gradients are checked, a `ParallelModel`.
        kwargs: Further arguments of `torch.amp.GradScaler`.
    """

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(**{"device": "cpu", **kwargs})
        self._model = model

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        gradients = [
            p.grad._local_tensor if isinstance(p.grad, DTensor) else p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        self._model.world.all_reduce(found_inf, "whether gradients are finite", dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}
