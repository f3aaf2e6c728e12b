"""LayerNorm, ReLU and dropout in one pass, with a dropout mask that any rank can regenerate.

The mask of a value depends on (key, global row, column) only, so training is the same on one rank and on many, and
backward regenerates the mask instead of storing it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from wirewise.errors import InputError
from wirewise.graph.ops.backend import check_matrix, uses_numba
from wirewise.graph.ops.counter import drop_threshold, keep_mask
from wirewise.graph.ops.dense_kernels import norm_act_drop_backward, norm_act_drop_forward

__all__ = ["norm_act_drop"]


def norm_act_drop(
    x: Float[Tensor, "n d"],
    gain: Float[Tensor, " d"] | None = None,
    bias: Float[Tensor, " d"] | None = None,
    *,
    p: float = 0.0,
    key: int = 0,
    rows: Int[Tensor, " n"] | None = None,
    norm: bool = True,
    relu: bool = True,
    training: bool = True,
    eps: float = 1e-5,
    implementation: str = "auto",
) -> Float[Tensor, "n d"]:
    """Apply dropout(relu(layer_norm(x))), fused forward and backward.

    Saves x, and mean and inverse deviation of each row; both masks are recomputed in backward.

    Args:
        x: Rows, float32 or float64.
        gain: Scale of the LayerNorm. Defaults to ones. Unused if `norm` is False.
        bias: Shift of the LayerNorm. Defaults to zeros. Unused if `norm` is False.
        p: Probability of dropping a value, in steps of 2**-16; survivors are scaled by 1 / (1 - p).
        key: 32-bit stream key, `wirewise.rng.stream_key(seed, epoch, layer)`.
        rows: Global row numbers, int64; needed where p > 0 in training.
        norm: Whether to apply LayerNorm.
        relu: Whether to apply ReLU.
        training: Whether to apply dropout.
        eps: Constant added to the variance.
        implementation: "auto", "numba" or "torch".

    Raises:
        InputError: Shapes, dtypes or the probability are invalid.
    """
    check_matrix(x, "x")
    drops = training and drop_threshold(p) > 0
    if drops and (rows is None or rows.shape != x.shape[:1] or rows.dtype != torch.int64):
        got = "none" if rows is None else f"{rows.dtype} {tuple(rows.shape)}"
        raise InputError(f"dropout needs the global number of each row, int64 [{len(x)}]; got {got}")
    for name, t in (("gain", gain), ("bias", bias)):
        if norm and t is not None and (t.shape != x.shape[1:] or t.dtype != x.dtype):
            raise InputError(f"got {name} {t.dtype} {tuple(t.shape)}; expected {x.dtype} [{x.shape[1]}]")
    steps = _Steps(norm=norm, eps=eps, relu=relu, p=p if drops else 0.0, key=key, rows=rows)
    if not norm:
        gain = bias = None
    if not uses_numba(implementation, x):
        return _torch(x, gain, bias, steps)
    return _NormActDrop.apply(x, gain, bias, steps)


class _Steps(NamedTuple):
    """Operations on the rows, in this order; see `norm_act_drop`."""

    norm: bool
    eps: float
    relu: bool
    p: float
    key: int
    rows: Tensor | None


def _torch(x: Tensor, gain: Tensor | None, bias: Tensor | None, steps: _Steps) -> Tensor:
    y = functional.layer_norm(x, x.shape[1:], gain, bias, steps.eps) if steps.norm else x
    y = torch.relu(y) if steps.relu else y
    if steps.p > 0 and steps.rows is not None:
        y = y * keep_mask(steps.key, steps.rows, x.shape[1], steps.p) * (1.0 / (1.0 - steps.p))
    # Like the fused form, never the input itself.
    return y.clone() if y is x else y


class _NormActDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, steps: _Steps) -> Tensor:
        x = x.contiguous()
        rows = torch.empty(0, dtype=torch.int64) if steps.rows is None else steps.rows.contiguous()
        mean, rstd = x.new_empty(2, len(x) if steps.norm else 0)
        out = torch.empty_like(x)
        a, b = _affine(x, gain, bias)
        # In the types that the kernels are compiled for.
        real = np.float64 if x.dtype == torch.float64 else np.float32
        key, threshold = np.uint32(steps.key & 0xFFFFFFFF), np.int32(drop_threshold(steps.p))
        scale = real(1.0 / (1.0 - steps.p))
        floor = real(0.0 if steps.relu else -np.inf)
        norm_act_drop_forward(
            x.numpy(), a, b, rows.numpy(), key, threshold, scale, real(steps.eps), steps.norm, floor,
            mean.numpy(), rstd.numpy(), out.numpy(),
        )  # fmt: skip
        ctx.save_for_backward(x, gain, bias, rows, mean, rstd)
        ctx.scalars = key, threshold, scale, steps.norm, floor
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, bias, rows, mean, rstd = ctx.saved_tensors
        grad, dx = grad.contiguous(), torch.empty_like(x)
        totals = np.zeros((2, x.shape[1]))
        a, b = _affine(x, gain, bias)
        norm_act_drop_backward(
            x.numpy(), a, b, rows.numpy(), *ctx.scalars, mean.numpy(), rstd.numpy(), grad.numpy(),
            dx.numpy(), totals,
        )  # fmt: skip
        dgain, dbias = (torch.from_numpy(t).to(x.dtype) for t in totals)
        wants = ctx.needs_input_grad
        return dx, dgain if wants[1] else None, dbias if wants[2] else None, None


def _affine(x: Tensor, gain: Tensor | None, bias: Tensor | None) -> tuple[Any, Any]:
    a = x.new_ones(x.shape[1]) if gain is None else gain.detach().contiguous()
    b = x.new_zeros(x.shape[1]) if bias is None else bias.detach().contiguous()
    return a.numpy(), b.numpy()
