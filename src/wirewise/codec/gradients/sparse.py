"""Sparse codecs: some elements of each segment at full precision; the rest goes to the error-feedback state."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, Feedback, GradientCodec, check_ratio, get_floats, put_floats
from wirewise.codec.gradients.segments import Segments
from wirewise.errors import CodecError

__all__ = ["RandomK", "TopK", "add_gathered"]


class TopK(GradientCodec):
    """The k = max(1, floor(ratio * size)) elements of largest magnitude of each segment; ties go to the first.

    Stich et al., "Sparsified SGD with Memory" (NeurIPS 2018), definition 2.1.

    Args:
        ratio: Fraction of the elements, above 0 and at most 1.
        implementation: One of `IMPLEMENTATIONS`.
    """

    def __init__(self, *, ratio: float = 0.01, implementation: str = "auto") -> None:
        super().__init__(implementation=implementation)
        self.ratio = check_ratio(ratio)

    def size_bytes(self, segments: Segments) -> int:
        """8 bytes (int32 index in the group, float32 value) for each kept element."""
        return 8 * int(segments.counts(self.ratio).sum())

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels = self._kernels(gradient.device)
        counts = segments.counts(self.ratio)
        indices, values, bad = kernels.largest(gradient, memory, segments, counts)
        if bad < 0:
            put_floats(out, 0, indices.view(torch.float32))
            put_floats(out, 4 * len(indices), values)
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        add_gathered(self._kernels(out.device), payloads, payloads.shape[1] // 8, scale, segments, out)


class RandomK(GradientCodec):
    """Random k elements of each segment without replacement, the same on all ranks, so that an all-reduce can sum them.

    Stich et al., "Sparsified SGD with Memory" (NeurIPS 2018), definition 2.1.

    Args:
        ratio: Fraction of the elements, above 0 and at most 1; k = max(1, floor(ratio * size)).
        scaled: Multiply values by size / k, which makes them unbiased; then there is no residual.
        implementation: One of `IMPLEMENTATIONS`.
    """

    wire_dtype = torch.float32
    looks_first = True

    def __init__(self, *, ratio: float = 0.01, scaled: bool = False, implementation: str = "auto") -> None:
        super().__init__(implementation=implementation)
        self.ratio, self.scaled = check_ratio(ratio), scaled
        self.memories = () if scaled else ("residual",)

    def size_bytes(self, segments: Segments) -> int:
        """4 bytes for each kept element; indices are not sent."""
        return 4 * int(segments.counts(self.ratio).sum())

    def _encode(self, gradient: Tensor, memory: Feedback, segments: Segments, out: Tensor, draw: Draw) -> int:
        kernels, values = self._kernels(gradient.device), gradient if memory is None else memory
        if memory is None:
            bad = kernels.first_not_finite(gradient, None, segments)
        else:
            bad = kernels.accumulate(gradient, memory, segments)
        if bad < 0:
            indices = self._indices(segments, draw, gradient.device)
            taken = kernels.take(values, indices, clear=memory is not None)
            put_floats(out, 0, taken * self._factors(segments, out.device) if self.scaled else taken)
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        indices = self._indices(segments, draw, out.device)
        out.zero_()
        for values in get_floats(payloads, 0, len(indices)) * scale:
            self._kernels(out.device).add_sparse(indices, values, out)

    def _indices(self, segments: Segments, draw: Draw, device: torch.device) -> Tensor:
        counts = segments.counts(self.ratio)
        return self._kernels(device).draw(segments, counts, draw.shared_key, device)

    def _factors(self, segments: Segments, device: torch.device) -> Tensor:
        counts = torch.from_numpy(segments.counts(self.ratio))
        factors = (torch.from_numpy(segments.sizes) / counts).float()
        return factors.repeat_interleave(counts).to(device)


def add_gathered(
    kernels: ModuleType, payloads: Tensor, count: int, scale: float, segments: Segments, out: Tensor
) -> None:
    """Write the scaled sum of payloads that each begin with `count` indices and values.

    Raises:
        CodecError: An index lies outside the group.
    """
    indices = get_floats(payloads, 0, count).view(torch.int32)
    values = get_floats(payloads, 4 * count, count) * scale
    low, high = (int(end) for end in indices.aminmax())
    if low < 0 or high >= segments.total:
        raise CodecError(
            f"a payload has indices from {low} to {high}, expected 0 to {segments.total - 1}: it is damaged, or comes "
            "from another codec"
        )
    out.zero_()
    for row in range(len(payloads)):
        kernels.add_sparse(indices[row], values[row], out)
