"""The reference kernels of blocks, each with its own scale."""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.codec.gradients.kernels.pieces import first_bad, from_planes, slices, to_planes, words
from wirewise.codec.gradients.segments import Segments
from wirewise.codec.kernels.reference import divide_ieee

__all__ = ["LEAST_STEP", "MOST", "SCALED", "add_blocks", "steps_of", "write_blocks"]

SCALED = 256
"""Number of elements that share a scale; the last block of a segment may be shorter."""
LEAST_STEP = 2.0**-100
MOST = float(torch.finfo(torch.float32).max) * (1 - 2.0**-7)
"""Bound to which sums are clipped, so that the largest code times its step, which was rounded up, is finite."""
_HALF = 1 << 23


def steps_of(tops: Tensor, bits: int) -> Tensor:
    """Step of each block: its largest |v| / levels, rounded up to bfloat16, float32 [blocks]; 0 if all are 0.

    A step is at least one whose inverse is finite with 24 binary places.
    """
    ratio = divide_ieee(tops, (1 << (bits - 1)) - 1)
    raised = ((ratio.clamp_min(LEAST_STEP).view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    return torch.where(tops > 0, raised, 0.0)


def write_blocks(
    gradient: Tensor, memory: Tensor | None, segments: Segments, bits: int, key: int | None, out: Tensor
) -> tuple[Tensor, int]:
    """Write signed codes of 8 or 4 bits: v / step rounded with u in [0, 1), to nearest without key; memory = v - sent.

    Sums are clipped to `MOST`. Four-bit codes lie in planes of blocks of `SCALED`.

    Returns:
        The step of each block, float32 [blocks]; and the first segment not finite, or -1.
    """
    v = gradient if memory is None else (gradient + memory).clamp(-MOST, MOST)
    most = (1 << (bits - 1)) - 1
    tops = [_blocks_of(v[part].abs()).amax(dim=1) for part in slices(segments)]
    steps, bad = (
        steps_of(torch.cat(tops), bits),
        first_bad(torch.stack([top.isfinite().all() for top in tops])),
    )
    inverse = torch.where(steps > 0, float(1 << 24) / steps, 0.0)
    starts, firsts = segments.starts_of(bits), segments.blocks_of(SCALED)
    for s, part in enumerate(slices(segments) if bad < 0 else ()):
        size, own = part.stop - part.start, slice(firsts[s], firsts[s + 1])
        fixed = (v[part].abs() * _spread(inverse[own], size)).to(torch.int64).clamp_max(most << 24)
        noise = _HALF if key is None else words(key, segments, s, v.device) >> 8
        level = (fixed + noise) >> 24
        signed = torch.where(v[part].signbit(), -level, level).to(torch.int8)
        codes = signed.view(torch.uint8)
        out[starts[s] : starts[s + 1]] = codes if bits == 8 else to_planes(codes & 15, 4, SCALED)
        if memory is not None:
            memory[part] = v[part] - signed.float() * _spread(steps[own], size)
    return steps, bad


def add_blocks(payloads: Tensor, segments: Segments, steps: Tensor, bits: int, out: Tensor) -> None:
    """Write the sum of signed code times step, steps [n, blocks]."""
    out.zero_()
    starts, firsts = segments.starts_of(bits), segments.blocks_of(SCALED)
    for r, row in enumerate(payloads):
        for s, part in enumerate(slices(segments)):
            size, codes = part.stop - part.start, row[starts[s] : starts[s + 1]]
            if bits == 4:
                # The fourth bit is the sign.
                codes = (from_planes(codes, 4, size, SCALED) ^ 8) - 8
            out[part] += codes.view(torch.int8).float() * _spread(steps[r, firsts[s] : firsts[s + 1]], size)


def _blocks_of(values: Tensor) -> Tensor:
    """Rows of `SCALED` elements, the last one padded with 0."""
    return torch.nn.functional.pad(values, (0, -len(values) % SCALED)).view(-1, SCALED)


def _spread(scales: Tensor, size: int) -> Tensor:
    """The scale of each element."""
    return scales.repeat_interleave(SCALED)[:size]
