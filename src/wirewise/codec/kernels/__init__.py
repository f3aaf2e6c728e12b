"""The quantizer in three implementations that write identical bytes: torch operations, numba, Triton."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from wirewise.errors import CodecError

if TYPE_CHECKING:
    import torch

__all__ = ["IMPLEMENTATIONS", "resolve_implementation"]

IMPLEMENTATIONS = ("auto", "torch", "numba", "triton")
"""Names of implementations; auto: numba on the CPU, Triton on CUDA where it is installed, else torch operations."""


def resolve_implementation(implementation: str, device: torch.device) -> str:
    """Resolve the name of an implementation for a device: torch, numba or triton.

    Raises:
        CodecError: The implementation cannot run on the device.
    """
    if implementation == "auto":
        fast = "triton" if device.type == "cuda" and importlib.util.find_spec("triton") else "torch"
        return "numba" if device.type == "cpu" else fast
    if implementation == "numba" and device.type != "cpu":
        raise CodecError(
            f"tensors are on {device}, numba kernels take CPU tensors; use implementation='auto' or 'torch'"
        )
    if implementation == "triton" and importlib.util.find_spec("triton") is None:
        raise CodecError(
            "triton is not installed; install a CUDA build of torch, or use implementation='auto' or 'torch'"
        )
    return implementation
