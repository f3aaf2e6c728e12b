"""Unbiased stochastic levels: a scale for each segment, and a random draw for each element.

Their error relative to the segment grows with its size, so large tensors should be cut into blocks (`Segments`). A
scale may exceed its definition without bias; this is how scales outside float32's range, or with an inverse outside
it, are handled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, Feedback, GradientCodec, get_floats, put_floats
from wirewise.codec.gradients.segments import Segments
from wirewise.codec.kernels.reference import divide_ieee
from wirewise.errors import InputError

__all__ = ["QSGD", "TernGrad"]

_LEAST_NORM = 2.0**-90
_LEAST_PEAK = 2.0**-126
_LARGEST = torch.finfo(torch.float32).max


class QSGD(GradientCodec):
    """Levels of |v| / norm in steps of 1 / levels, rounded up with the probability of the fraction.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding" (NeurIPS 2017),
    section 3.1, with signed bytes instead of Elias codes.

    Args:
        levels: Quantization levels, from 1 to 127.
        implementation: One of `IMPLEMENTATIONS`.
    """

    def __init__(self, *, levels: int = 64, implementation: str = "auto") -> None:
        super().__init__(implementation=implementation)
        if not 1 <= levels <= 127:
            raise InputError(f"levels is {levels}; expected 1 to 127, which fit a signed byte")
        self.levels = int(levels)

    def size_bytes(self, segments: Segments) -> int:
        """1 byte per element, and 4 bytes for each segment."""
        return segments.total + 4 * len(segments)

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        squares, bad = kernels.sums(gradient, memory, segments, 2)
        if bad < 0:
            norms = torch.where(squares > 0, squares.sqrt().clamp(_LEAST_NORM, _LARGEST), 0.0).float()
            kernels.write_levels(gradient, memory, segments, norms, self.levels, draw.own_key, out)
            put_floats(out, segments.total, norms)
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        steps = divide_ieee(get_floats(payloads, segments.total, len(segments)), self.levels)
        self._kernels(out.device).add_levels(payloads, segments, steps * scale, out)


class TernGrad(GradientCodec):
    """0, or plus or minus the largest magnitude of the segment, sampled with probability |v| / largest.

    Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning" (NeurIPS 2017),
    section 3.1.
    """

    def size_bytes(self, segments: Segments) -> int:
        """2 bits per element, rounded up to bytes, and 4 bytes, for each segment."""
        return int(segments.starts_of(2)[-1]) + 4 * len(segments)

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        peaks, bad = kernels.peaks(gradient, memory, segments)
        if bad < 0:
            peaks = torch.where(peaks > 0, peaks.clamp_min(_LEAST_PEAK), 0.0)
            kernels.write_ternary(gradient, memory, segments, peaks, draw.own_key, out)
            put_floats(out, int(segments.starts_of(2)[-1]), peaks)
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        peaks = get_floats(payloads, int(segments.starts_of(2)[-1]), len(segments))
        self._kernels(out.device).add_ternary(payloads, segments, peaks * scale, out)
