"""Gradients in 16 bits: payloads can be added up by an all-reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, Feedback, GradientCodec
from wirewise.codec.gradients.segments import Segments

__all__ = ["BF16", "FP16"]


class _Cast(GradientCodec):
    # Sums stay finite, so that behind a finite gradient only a memory that was not finite before can be refused.
    looks_first = True

    def size_bytes(self, segments: Segments) -> int:
        """2 bytes per element."""
        return 2 * segments.total

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        return kernels.write_cast(gradient, memory, segments, out, self.wire_dtype)

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        self._kernels(out.device).add_cast(payloads, out, scale, self.wire_dtype)


class FP16(_Cast):
    """IEEE half precision, rounded to nearest; values beyond 65504 are sent as 65504."""

    wire_dtype = torch.float16


class BF16(_Cast):
    """Cast to bfloat16, rounded to nearest; values beyond its largest are sent as its largest."""

    wire_dtype = torch.bfloat16
