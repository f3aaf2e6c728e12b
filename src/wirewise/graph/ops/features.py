"""The first layer on sparse input features."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph.data import SparseRows
from wirewise.graph.ops.aggregation import spmm
from wirewise.graph.ops.backend import check_matrix, uses_numba
from wirewise.graph.ops.csr import Csr
from wirewise.graph.ops.sparse_kernels import scatter_rows

__all__ = ["aggregate_features", "sparse_linear"]


def sparse_linear(
    x: Csr,
    weight: Float[Tensor, "out features"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    implementation: str = "auto",
) -> Float[Tensor, "rows out"]:
    """Apply `torch.nn.functional.linear` to sparse x: x @ weight.T + bias, with gradients to weight and bias only.

    Args:
        x: Sparse features, [rows, features].
        weight: Dense weight, float32 or float64.
        bias: Added to every row.
        implementation: "auto", "numba" or "torch".

    Raises:
        InputError: x is not a `Csr`, or shapes do not match.
    """
    if not isinstance(x, Csr):
        raise InputError(
            f"got features of type {type(x).__name__}; expected a Csr: make it once by Csr.from_..."
        )
    check_matrix(weight, "weight")
    if weight.shape[1] != x.num_columns:
        raise InputError(
            f"got weight {tuple(weight.shape)} for {x.num_columns} features; expected [out, features]"
        )
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        raise InputError(
            f"got bias {bias.dtype} {tuple(bias.shape)}; expected {weight.dtype} [{weight.shape[0]}]"
        )
    return _SparseLinear.apply(x, weight, bias, implementation)


def aggregate_features(
    csr: Csr, x: SparseRows | sp.sparray | sp.spmatrix, self_weight: Float[Tensor, " own"] | None = None
) -> Csr:
    """Aggregate sparse input features over in-neighbours once, so that the first layer needs no exchange or sum.

    Args:
        csr: In-edges, [own, own + halo].
        x: Features of own then halo rows, `SparseRows` or a SciPy matrix.
        self_weight: Weight of the row itself, [own].

    Returns:
        Features summed over in-neighbours, [own, features], for `sparse_linear`.
    """
    features = x.to_scipy() if isinstance(x, SparseRows) else x.tocsr()
    if features.shape[0] != csr.num_columns:
        raise InputError(
            f"got features of {features.shape[0]} rows; expected {csr.num_columns}, own then halo rows"
        )
    matrix = csr.to_scipy()
    total = matrix @ features
    if self_weight is not None:
        if self_weight.shape != (csr.num_rows,):
            raise InputError(f"got self_weight {tuple(self_weight.shape)}; expected [{csr.num_rows}]")
        scale = self_weight.detach().cpu().numpy().astype(matrix.dtype)
        total = total + sp.diags_array(scale) @ features[: csr.num_rows]
    return Csr.from_scipy(sp.csr_matrix(total).astype(matrix.dtype), device=csr.device)


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Csr, weight: Tensor, bias: Tensor | None, implementation: str) -> Tensor:
        ctx.x, ctx.implementation = x, implementation
        out = weight.new_empty(x.num_rows, weight.shape[0])
        return spmm(
            x,
            weight.detach().t().contiguous(),
            out,
            scale=None if bias is None else bias.new_ones(1),
            base=None if bias is None else bias.detach()[None],
            implementation=implementation,
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        weight = _weight_gradient(ctx.x, grad, ctx.implementation) if ctx.needs_input_grad[1] else None
        return None, weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None


def _weight_gradient(x: Csr, grad: Tensor, implementation: str) -> Tensor:
    """Compute grad^T x, [out, features]; the smaller of gradient and result is visited out of order."""
    if uses_numba(implementation, grad) and x.num_columns <= x.num_rows:
        out = grad.new_zeros(x.num_columns, grad.shape[1])
        scatter_rows(*x.arrays(grad.dtype), grad.numpy(), out.numpy())
    else:
        out = grad.new_empty(x.num_columns, grad.shape[1])
        spmm(x.transposed, grad, out, implementation=implementation)
    return out.t().contiguous()
