"""8 or 4 bits per element and a scale per block of 256, for two-shot collectives, which encode each shard twice.

As in the quantised collectives of ZeRO++ (Wang et al., ICLR 2024, section 3.3) and LoCo (Xie et al., 2024), with
symmetric codes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, Feedback, GradientCodec
from wirewise.codec.gradients.kernels.reference_blocks import SCALED
from wirewise.codec.gradients.segments import Segments
from wirewise.errors import InputError

__all__ = ["ROUNDINGS", "Int4", "Int8"]

ROUNDINGS = ("nearest", "stochastic")
"""Rounding to nearest loses least where a residual keeps the rest; stochastic rounding is unbiased without one."""


class _Blocks(GradientCodec):
    bits: ClassVar[int]
    # Sums stay finite, so that behind a finite gradient only a memory that was not finite before can be refused.
    looks_first = True

    def __init__(self, *, rounding: str = "nearest", implementation: str = "auto") -> None:
        super().__init__(implementation=implementation)
        if rounding not in ROUNDINGS:
            raise InputError(f"rounding is {rounding!r}; expected one of {', '.join(ROUNDINGS)}")
        self.rounding = rounding

    def size_bytes(self, segments: Segments) -> int:
        """`bits` an element, rounded up to bytes for each segment, and 2 bytes for each of its blocks."""
        return int(segments.starts_of(self.bits)[-1] + 2 * segments.blocks_of(SCALED)[-1])

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        key = draw.own_key if self.rounding == "stochastic" else None
        steps, bad = kernels.write_blocks(gradient, memory, segments, self.bits, key, out)
        if bad < 0:
            raw = (steps.view(torch.int32) >> 16).to(torch.int16)
            out[int(segments.starts_of(self.bits)[-1]) :].copy_(raw.view(torch.uint8))
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        raw = payloads[:, int(segments.starts_of(self.bits)[-1]) :].clone(
            memory_format=torch.contiguous_format
        )
        steps = raw.view(torch.bfloat16).float() * scale
        self._kernels(out.device).add_blocks(payloads, segments, steps, self.bits, out)


class Int8(_Blocks):
    """8-bit integers -127 to 127 times the step of the block, its largest magnitude / 127 rounded up to bfloat16.

    Args:
        rounding: One of `ROUNDINGS`.
        implementation: One of `IMPLEMENTATIONS`.
    """

    bits = 8


class Int4(_Blocks):
    """-7 to 7 times the step of the block, its largest magnitude / 7 rounded up to bfloat16.

    Args:
        rounding: One of `ROUNDINGS`.
        implementation: One of `IMPLEMENTATIONS`.
    """

    bits = 4
