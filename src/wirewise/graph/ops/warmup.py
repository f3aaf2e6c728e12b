"""Compile the CPU kernels ahead of time, so that the first epoch is not slowed down."""

from __future__ import annotations

import torch

from wirewise.graph.ops.activation import norm_act_drop
from wirewise.graph.ops.aggregation import aggregate
from wirewise.graph.ops.csr import Csr
from wirewise.graph.ops.features import sparse_linear

__all__ = ["warm"]


def warm(dtype: torch.dtype = torch.float32) -> None:
    """Compile every kernel for one precision, or load it from numba's cache on disk (`NUMBA_CACHE_DIR`)."""
    with torch.enable_grad():
        csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), num_columns=2)
        rows = torch.arange(2)
        weight = torch.ones(4, 2, dtype=dtype, requires_grad=True)
        h = sparse_linear(csr, weight)
        h = norm_act_drop(h, torch.ones(4, dtype=dtype), torch.zeros(4, dtype=dtype), p=0.5, rows=rows)
        aggregate(csr, h).sum().backward()
