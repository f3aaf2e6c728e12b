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
    x_own: Float[Tensor, "own d"],
    x_halo: Float[Tensor, "halo d"] | None = None,
    *,
    self_weight: Float[Tensor, " own"] | None = None,
    rows: tuple[int, int] | None = None,
    out: Float[Tensor, "rows d"] | None = None,
    implementation: str = "auto",
) -> Float[Tensor, "rows d"]:
    """Sum over in-neighbours, z_r = sum_e weight_e x_e (+ self_weight_r x_own_r), differentiable in x.

    The gradient gathers through the transposed matrix of the row block; nothing is scattered and own and halo
    rows are never concatenated. Sums run in the order of the columns.

    Args:
        csr: In-edges; columns below len(x_own) are own rows, the others halo rows.
        x_own: Rows of own nodes, float32 or float64.
        x_halo: Rows of halo nodes; None where the matrix has own columns only.
        self_weight: Weight of the row itself; it gets no gradient.
        rows: Compute rows low to high only; None: all.
        out: Write here; only where no gradient is asked for.
        implementation: "auto", "numba" or "torch".

    Returns:
        [high - low, d].

    Raises:
        InputError: Shapes, precisions or devices that do not fit each other.
    """
    low, high = rows or (0, csr.num_rows)
    _check_inputs(csr, x_own, x_halo, self_weight, (low, high))
    if out is None:
        result: Tensor = _Aggregate.apply(csr, x_own, x_halo, self_weight, low, high, implementation)
        return result
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x_own, x_halo)):
        raise InputError("got out= for inputs that require a gradient; drop out= or use torch.no_grad()")
    return _forward(csr, x_own, x_halo, self_weight, low, high, out, implementation)


def aggregate_into(
    csr: Csr,
    x: Float[Tensor, "columns d"],
    out: Float[Tensor, "rows d"],
    *,
    accumulate: bool = False,
    implementation: str = "auto",
) -> Float[Tensor, "rows d"]:
    """Write csr @ x into `out`, or add it (accumulate): the rows of one peer can be added as they land.

    No gradient is recorded. Adding column blocks in ascending order gives the same bits as one pass over all.
    """
    check_matrix(x, "x", rows=csr.num_columns)
    check_matrix(out, "out", rows=csr.num_rows, like=x)
    return spmm(csr, x.detach(), out, accumulate=accumulate, implementation=implementation)


def aggregate_transposed(
    csr: Csr,
    grad: Float[Tensor, "rows d"],
    out: Float[Tensor, "columns d"] | None = None,
    *,
    accumulate: bool = False,
    implementation: str = "auto",
) -> Float[Tensor, "columns d"]:
    """Partial gradients of the columns, csr^T @ grad; overwrites `out` or adds to it, records no gradient."""
    check_matrix(grad, "grad", rows=csr.num_rows)
    if out is None:
        out, accumulate = grad.new_empty(csr.num_columns, grad.shape[1]), False
    check_matrix(out, "out", rows=csr.num_columns, like=grad)
    return spmm(csr.transposed, grad.detach(), out, accumulate=accumulate, implementation=implementation)


def spmm(
    csr: Csr,
    x: Tensor,
    out: Tensor,
    *,
    halo: Tensor | None = None,
    scale: Tensor | None = None,
    base: Tensor | None = None,
    accumulate: bool = False,
    implementation: str = "auto",
) -> Tensor:
    """Set out to csr @ [x; halo] + scale * base, or add to it; `base` of one row serves all rows."""
    if not uses_numba(implementation, x):
        return _spmm_torch(csr, x, out, halo, scale, base, accumulate)
    target = out if out.is_contiguous() else out.contiguous()
    x = x.contiguous()
    nothing = x.new_empty(0).numpy(), x[:0].numpy(), 1
    start = nothing
    if scale is not None and base is not None:
        step = 0 if len(base) == 1 else 1
        start = scale.to(x.dtype).contiguous().numpy(), base.contiguous().numpy(), step
    begin, middle, end, indices, weight = csr.arrays(x.dtype, csr.num_columns if halo is None else len(x))
    gather_rows(begin, middle, indices, weight, 0, x.numpy(), *start, accumulate, target.numpy())
    if halo is not None:
        rows = halo.contiguous().numpy()
        gather_rows(middle, end, indices, weight, len(x), rows, *nothing, True, target.numpy())
    return out if target is out else out.copy_(target)


def _spmm_torch(
    csr: Csr,
    x: Tensor,
    out: Tensor,
    halo: Tensor | None,
    scale: Tensor | None,
    base: Tensor | None,
    accumulate: bool,
) -> Tensor:
    if halo is None:
        product = torch.sparse.mm(csr.sparse_tensor(x.dtype), x)
    else:
        product = torch.sparse.mm(csr.columns(0, len(x)).sparse_tensor(x.dtype), x)
        product += torch.sparse.mm(csr.columns(len(x), csr.num_columns).sparse_tensor(x.dtype), halo)
    if scale is not None and base is not None:
        product = torch.addcmul(product, scale.to(x.dtype)[:, None], base)
    return out.add_(product) if accumulate else out.copy_(product)


def _forward(
    csr: Csr,
    x_own: Tensor,
    x_halo: Tensor | None,
    self_weight: Tensor | None,
    low: int,
    high: int,
    out: Tensor | None,
    implementation: str,
) -> Tensor:
    if out is None:
        out = x_own.new_empty(high - low, x_own.shape[1])
    check_matrix(out, "out", rows=high - low, like=x_own)
    has_self = self_weight is not None
    return spmm(
        csr.rows(low, high),
        x_own.detach(),
        out,
        halo=None if x_halo is None else x_halo.detach(),
        scale=self_weight[low:high] if self_weight is not None else None,
        base=x_own.detach()[low:high] if has_self else None,
        implementation=implementation,
    )


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        csr: Csr,
        x_own: Tensor,
        x_halo: Tensor | None,
        self_weight: Tensor | None,
        low: int,
        high: int,
        implementation: str,
    ) -> Tensor:
        ctx.csr, ctx.range, ctx.num_own, ctx.implementation = csr, (low, high), len(x_own), implementation
        ctx.self_weight = self_weight
        return _forward(csr, x_own, x_halo, self_weight, low, high, None, implementation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, high = ctx.range
        transposed = ctx.csr.rows(low, high).transposed
        grad, own, halo = grad.contiguous(), None, None
        if ctx.needs_input_grad[1]:
            own = grad.new_empty(ctx.num_own, grad.shape[1])
            _backward_own(transposed.rows(0, ctx.num_own), grad, own, ctx)
        if ctx.needs_input_grad[2]:
            block = transposed.rows(ctx.num_own, transposed.num_rows)
            halo = grad.new_empty(block.num_rows, grad.shape[1])
            spmm(block, grad, halo, implementation=ctx.implementation)
        return None, own, halo, None, None, None, None


def _backward_own(block: Csr, grad: Tensor, out: Tensor, ctx: Any) -> None:
    """Each row of `out` is written once: the rows that are also outputs start from their own gradient."""
    low, high = ctx.range
    if ctx.self_weight is None:
        spmm(block, grad, out, implementation=ctx.implementation)
        return
    for first, last in ((0, low), (low, high), (high, len(out))):
        inside = first == low and last == high
        spmm(
            block.rows(first, last),
            grad,
            out[first:last],
            scale=ctx.self_weight[low:high] if inside else None,
            base=grad if inside else None,
            implementation=ctx.implementation,
        )


def _check_inputs(
    csr: Csr, x_own: Tensor, x_halo: Tensor | None, self_weight: Tensor | None, rows: tuple[int, int]
) -> None:
    check_matrix(x_own, "x_own")
    if x_halo is not None:
        check_matrix(x_halo, "x_halo", like=x_own)
    columns = len(x_own) + (0 if x_halo is None else len(x_halo))
    if columns != csr.num_columns:
        raise InputError(
            f"got {len(x_own)} own and {columns - len(x_own)} halo rows for a matrix of {csr.num_columns} "
            "columns; expected one row a column"
        )
    if x_own.device != csr.device:
        raise InputError(f"got rows on {x_own.device} and a matrix on {csr.device}; move one with .to()")
    if not 0 <= rows[0] <= rows[1] <= csr.num_rows:
        raise InputError(f"got rows {rows}; expected a range inside 0 to {csr.num_rows}")
    if self_weight is not None and (self_weight.shape != (csr.num_rows,) or len(x_own) < rows[1]):
        raise InputError(
            f"got self_weight {tuple(self_weight.shape)} and {len(x_own)} own rows for a matrix of "
            f"{csr.num_rows} rows; expected one weight a row and an own row for each"
        )
