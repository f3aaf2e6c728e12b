"""Choice of implementation for a call, and checks shared by all operations."""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.errors import InputError

__all__ = ["check_matrix", "uses_numba"]


def uses_numba(implementation: str, x: Tensor) -> bool:
    """Whether to use the compiled CPU kernels for this call."""
    if implementation not in ("auto", "numba", "torch"):
        raise InputError(f"got implementation {implementation!r}; expected auto, numba or torch")
    if implementation == "numba" and x.device.type != "cpu":
        raise InputError(
            f"numba kernels run on the CPU; got a tensor on {x.device}. Use implementation='auto'"
        )
    return implementation != "torch" and x.device.type == "cpu"


def check_matrix(x: Tensor, name: str, *, rows: int | None = None, like: Tensor | None = None) -> None:
    """Raise unless x is a floating-point matrix with this many rows and the width, dtype and device of `like`."""
    if x.ndim != 2 or x.dtype not in (torch.float32, torch.float64):
        raise InputError(f"got {name} {x.dtype} {tuple(x.shape)}; expected a float32 or float64 matrix")
    if rows is not None and len(x) != rows:
        raise InputError(f"got {name} with {len(x)} rows; expected {rows}")
    if like is not None and (x.shape[1], x.dtype, x.device) != (like.shape[1], like.dtype, like.device):
        raise InputError(
            f"got {name} of width {x.shape[1]}, {x.dtype} on {x.device}; "
            f"expected width {like.shape[1]}, {like.dtype} on {like.device}"
        )
