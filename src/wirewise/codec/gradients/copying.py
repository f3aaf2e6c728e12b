"""Copy that also checks that numbers are finite: the check costs almost nothing compared with the memory traffic."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from wirewise.errors import CodecError

__all__ = ["copy_checked", "parts_finite"]


def copy_checked(source: Float[Tensor, " d"], target: Float[Tensor, " d"]) -> bool:
    """Copy bit for bit on one thread, and return whether all numbers are finite (`GradientCodec.encode(checked=...)`).

    Autograd does not see the write to the target.

    Args:
        source: Elements, float32 [d], on the CPU.
        target: Elements, of the same size, not overlapping; written in full even if some are not finite.

    Raises:
        CodecError: A tensor does not fit.
    """
    for name, value in (("source", source), ("target", target)):
        if (
            value.type() != "torch.FloatTensor"
            or value.shape != (source.numel(),)
            or not value.is_contiguous()
        ):
            raise CodecError(
                f"{name} is {value.type()} {tuple(value.shape)}, expected contiguous float32 ({source.numel()},) on "
                "the CPU"
            )
    from wirewise.codec.gradients.kernels import cpu

    return cpu.copy_checked(source.detach(), target.detach())


def parts_finite(values: Float[Tensor, " d"], parts: Int64[np.ndarray, "n 2"]) -> bool:
    """Whether all numbers in the given parts are finite, checked in one call.

    Args:
        values: Contiguous float32 on the CPU; otherwise returns False without checking.
        parts: First element and end of each.
    """
    if values.dtype != torch.float32 or values.device.type != "cpu":
        return False
    from wirewise.codec.gradients.kernels import cpu

    return cpu.parts_finite(values.detach(), parts)
