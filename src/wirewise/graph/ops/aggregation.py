"""Weighted sums over neighbours, and their gradients as sums over the transposed matrix."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph.ops.backend import check_matrix, uses_numba
from wirewise.graph.ops.csr import Csr
from wirewise.graph.ops.sparse_kernels import gather_rows

__all__ = ["aggregate", "aggregate_into", "aggregate_transposed", "spmm"]


def aggregate(
    csr: Csr,
    x: Float[Tensor, "columns d"],
    *,
    self_weight: Float[Tensor, " rows"] | None = None,
    implementation: str = "auto",
) -> Float[Tensor, "rows d"]:
    """Sum over in-neighbours, z_r = sum_e weight_e x_e (+ self_weight_r x_r), differentiable in x.

    The gradient gathers through the transposed matrix, without scatter. Sums run in the order of the columns.

    Args:
        csr: In-edges, [rows, columns].
        x: One row per column of the matrix, float32 or float64; own rows come first.
        self_weight: Weight of the row itself, without gradient.
        implementation: "auto", "numba" or "torch".

    Raises:
        InputError: Shapes, dtypes or devices do not match.
    """
    check_matrix(x, "x")
    if len(x) != csr.num_columns:
        raise InputError(
            f"got {len(x)} rows for a matrix of {csr.num_columns} columns; expected one row a column"
        )
    if x.device != csr.device:
        raise InputError(f"got rows on {x.device} and a matrix on {csr.device}; move one with .to()")
    if self_weight is not None and (self_weight.shape != (csr.num_rows,) or len(x) < csr.num_rows):
        raise InputError(
            f"got self_weight {tuple(self_weight.shape)} and {len(x)} rows for a matrix of {csr.num_rows} rows; "
            "expected one weight a row and an own row for each"
        )
    return _Aggregate.apply(csr, x, self_weight, implementation)


def aggregate_into(
    csr: Csr,
    x: Float[Tensor, "columns d"],
    out: Float[Tensor, "rows d"],
    *,
    accumulate: bool = False,
    implementation: str = "auto",
) -> Float[Tensor, "rows d"]:
    """Write csr @ x to `out`, or add it (`accumulate`), so that each peer's rows can be added as they arrive.

    No gradient is recorded. Adding column blocks in ascending order gives the same bits as one pass over all.
    """
    check_matrix(x, "x", rows=csr.num_columns)
    check_matrix(out, "out", rows=csr.num_rows, like=x)
    return spmm(csr, x.detach(), out, accumulate=accumulate, implementation=implementation)


def aggregate_transposed(
    csr: Csr, grad: Float[Tensor, "rows d"], out: Float[Tensor, "columns d"], *, implementation: str = "auto"
) -> Float[Tensor, "columns d"]:
    """Write the partial gradients of the columns, csr^T @ grad, into `out`; no gradient is recorded."""
    check_matrix(grad, "grad", rows=csr.num_rows)
    check_matrix(out, "out", rows=csr.num_columns, like=grad)
    return spmm(csr.transposed, grad.detach(), out, implementation=implementation)


def spmm(
    csr: Csr,
    x: Tensor,
    out: Tensor,
    *,
    scale: Tensor | None = None,
    base: Tensor | None = None,
    accumulate: bool = False,
    implementation: str = "auto",
) -> Tensor:
    """Set out to csr @ x + scale * base, or add to it; `base` of one row serves all rows."""
    if not uses_numba(implementation, x):
        product = torch.sparse.mm(csr.sparse_tensor(x.dtype), x)
        if scale is not None and base is not None:
            product = torch.addcmul(product, scale.to(x.dtype)[:, None], base)
        return out.add_(product) if accumulate else out.copy_(product)
    target, x = out if out.is_contiguous() else out.contiguous(), x.contiguous()
    start = x.new_empty(0).numpy(), x[:0].numpy(), 1
    if scale is not None and base is not None:
        step = 0 if len(base) == 1 else 1
        start = scale.to(x.dtype).contiguous().numpy(), base.contiguous().numpy(), step
    gather_rows(*csr.arrays(x.dtype), 0, x.numpy(), *start, accumulate, target.numpy())
    return out if target is out else out.copy_(target)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, csr: Csr, x: Tensor, self_weight: Tensor | None, implementation: str) -> Tensor:
        ctx.csr, ctx.self_weight, ctx.implementation = csr, self_weight, implementation
        out, x = x.new_empty(csr.num_rows, x.shape[1]), x.detach()
        base = None if self_weight is None else x[: csr.num_rows]
        return spmm(csr, x, out, scale=self_weight, base=base, implementation=implementation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        turned, weight, grad = ctx.csr.transposed, ctx.self_weight, grad.contiguous()
        out = grad.new_empty(turned.num_rows, grad.shape[1])
        # Each row is written once: those that are also outputs start from their own gradient.
        own = 0 if weight is None else ctx.csr.num_rows
        options = {"implementation": ctx.implementation}
        spmm(turned.rows(0, own), grad, out[:own], scale=weight, base=grad, **options)
        spmm(turned.rows(own, turned.num_rows), grad, out[own:], **options)
        return None, out, None, None
