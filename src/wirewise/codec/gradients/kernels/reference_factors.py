"""The reference kernels of low-rank factors.

A matrix [m, n] is given by its elements in order; elements missing in its last row, fewer than n, are 0. Factors have
a row for each rank: [rank, m] and [rank, n].
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["NOISE", "add_product", "left_factor", "orthogonalise", "right_factor"]

NOISE = 1e-6
"""Norm of a factor after its projections, relative to before, below which it is rounding noise."""


def left_factor(values: Tensor, gradient: Tensor | None, right: Tensor, left: Tensor) -> None:
    """Add the gradient, if any, to the values of a matrix M; write M times the right factor to the left factor."""
    if gradient is not None:
        values.add_(gradient)
    left.copy_(_product(right, _matrix(values, left, right).t()))


def right_factor(values: Tensor, left: Tensor, right: Tensor) -> None:
    """Write M^T times the left factor to the right factor."""
    right.copy_(_product(left, _matrix(values, left, right)))


def add_product(left: Tensor, right: Tensor, share: float, out: Tensor, *, first: bool) -> None:
    """Add `share` times the product of two factors to the values of a matrix; overwrite them if `first`."""
    product = _product(left.t(), share * right).flatten()[: len(out)]
    if first:
        out.copy_(product)
    else:
        out.add_(product)


def orthogonalise(flat: Tensor, tables: np.ndarray) -> None:
    """Orthonormalise the rows of each factor in place; linearly dependent rows become 0.

    Gram-Schmidt with two projections a row: sums in float64, rows in float32.

    Args:
        flat: Factors, one after another or not, float32.
        tables: First element, rows and columns of each, int64 [factors, 3].
    """
    for rows, columns in np.unique(tables[:, 1:], axis=0).tolist():
        own = tables[(tables[:, 1:] == (rows, columns)).all(axis=1), 0]
        places = torch.from_numpy(own).to(flat.device)[:, None]
        places = places + torch.arange(rows * columns, device=flat.device)
        flat[places] = _orthonormal(flat[places].view(len(own), rows, columns)).flatten(1)


def _orthonormal(factors: Tensor) -> Tensor:
    """Rows [b, r, c] of factors of one shape, together."""
    done: list[Tensor] = []
    for row in factors.unbind(dim=1):
        v, before = row, row.double().norm(dim=1, keepdim=True)
        for other in 2 * done:
            wide = other.double()
            v = (v.double() - (wide * v.double()).sum(dim=1, keepdim=True) * wide).float()
        after = v.double().norm(dim=1, keepdim=True)
        kept = after > NOISE * before
        done.append(torch.where(kept, v.double() / torch.where(kept, after, 1.0), 0.0).float())
    return torch.stack(done, dim=1)


def _matrix(values: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """View of the values as [m, n], or a copy padded with 0."""
    m, n = left.shape[1], right.shape[1]
    # Padding by nothing would copy.
    return (
        torch.nn.functional.pad(values, (0, m * n - len(values))) if len(values) < m * n else values
    ).view(m, n)


def _product(a: Tensor, b: Tensor) -> Tensor:
    # The last bits of a product may depend on where in a cache line a factor begins.
    return torch.mm(a.clone(), b)
