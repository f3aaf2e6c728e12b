"""One bit per element: its sign, and at most two levels for each segment."""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, Feedback, GradientCodec, get_floats, put_floats
from wirewise.codec.gradients.segments import Segments
from wirewise.errors import InputError

__all__ = ["EFSign", "OneBit", "SignSGD", "Signum"]


class EFSign(GradientCodec):
    """Signs times the mean magnitude of the segment.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (ICML 2019), section 4.
    """

    def size_bytes(self, segments: Segments) -> int:
        """1 bit per element, rounded up to bytes, and 4 bytes, for each segment."""
        return int(segments.starts_of(1)[-1]) + 4 * len(segments)

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        sums, bad = kernels.sums(gradient, memory, segments, 1)
        if bad < 0:
            scale = (sums / torch.from_numpy(segments.sizes).to(sums.device)).float()
            kernels.write_signs(gradient, memory, segments, -scale, scale, out)
            put_floats(out, int(segments.starts_of(1)[-1]), scale)
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        high = get_floats(payloads, int(segments.starts_of(1)[-1]), len(segments)) * scale
        self._kernels(out.device).add_signs(payloads, segments, -high, high, out)


class SignSGD(GradientCodec):
    """Signs; the sum decodes to the majority vote: +1, -1, or 0 at a tie.

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant" (ICLR 2019).
    """

    memories: tuple[str, ...] = ()

    def size_bytes(self, segments: Segments) -> int:
        """1 bit per element, rounded up to bytes for each segment."""
        return int(segments.starts_of(1)[-1])

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        return self._kernels(gradient.device).write_plain_signs(gradient, segments, out)

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        one = torch.ones(len(payloads), len(segments), device=out.device)
        self._kernels(out.device).add_signs(payloads, segments, -one, one, out)
        out.sign_().mul_(scale)


class Signum(SignSGD):
    """Signs of the momentum m = momentum * m + (1 - momentum) * gradient, with majority vote.

    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (ICML 2018), algorithm 2.

    Args:
        momentum: Fraction of the old momentum, from 0 to below 1.
        implementation: One of `IMPLEMENTATIONS`.
    """

    memories = ("momentum",)
    looks_first = True

    def __init__(self, *, momentum: float = 0.9, implementation: str = "auto") -> None:
        super().__init__(implementation=implementation)
        if not 0.0 <= momentum < 1.0:
            raise InputError(f"momentum is {momentum}; expected at least 0 and below 1, for example 0.9")
        self.momentum = momentum

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        if memory is None:
            return super()._encode(gradient, None, segments, out, draw)
        kernels = self._kernels(gradient.device)
        return kernels.write_momentum(gradient, memory, segments, 1.0 - self.momentum, out)


class OneBit(GradientCodec):
    """Signs with two levels: the mean of the negative elements of the segment, and that of the others.

    Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014), section 3.
    """

    def size_bytes(self, segments: Segments) -> int:
        """1 bit per element, rounded up to bytes, and 8 bytes, for each segment."""
        return int(segments.starts_of(1)[-1]) + 8 * len(segments)

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        low, high, bad = kernels.halves(gradient, memory, segments)
        if bad < 0:
            kernels.write_signs(gradient, memory, segments, low, high, out)
            put_floats(out, int(segments.starts_of(1)[-1]), torch.cat([low, high]))
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        both = get_floats(payloads, int(segments.starts_of(1)[-1]), 2 * len(segments)) * scale
        low, high = (part.contiguous() for part in both.split(len(segments), dim=1))
        self._kernels(out.device).add_signs(payloads, segments, low, high, out)
