"""The gradient kernels in plain torch operations: the definition that the fast kernels are tested against.

v is gradient + memory, in float32. Sums are taken in float64, so that their order does not show after rounding to
float32. `pieces.py` defines the layout of codes and the random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.codec.gradients.kernels.pieces import (
    all_finite,
    first_bad,
    first_not_finite,
    from_planes,
    peaks,
    slices,
    to_planes,
    values_of,
    words,
)
from wirewise.codec.gradients.kernels.reference_blocks import add_blocks, write_blocks
from wirewise.codec.gradients.kernels.reference_factors import (
    add_product,
    left_factor,
    orthogonalise,
    right_factor,
)
from wirewise.codec.gradients.kernels.reference_select import (
    above,
    accumulate,
    accumulate_above,
    add_sparse,
    draw,
    largest,
    take,
)
from wirewise.codec.gradients.segments import Segments
from wirewise.codec.kernels.reference import divide_ieee

__all__ = [
    "REFUSES_LATE",
    "above",
    "accumulate",
    "accumulate_above",
    "add_blocks",
    "add_cast",
    "add_levels",
    "add_product",
    "add_signs",
    "add_sparse",
    "add_ternary",
    "all_finite",
    "draw",
    "first_not_finite",
    "halves",
    "largest",
    "left_factor",
    "orthogonalise",
    "peaks",
    "right_factor",
    "sums",
    "take",
    "write_blocks",
    "write_cast",
    "write_levels",
    "write_momentum",
    "write_plain_signs",
    "write_signs",
    "write_ternary",
]

REFUSES_LATE = False
"""Whether kernels that update a memory still refuse a gradient that is not finite, though it was declared checked."""
_LARGEST = torch.finfo(torch.float32).max


def sums(gradient: Tensor, memory: Tensor | None, segments: Segments, power: int) -> tuple[Tensor, int]:
    """Sum of |v|^power of each segment, float64 [s], power 1 or 2; and the first non-finite segment, or -1."""
    v = values_of(gradient, memory).double().abs()
    totals = torch.stack([v[part].pow(power).sum() for part in slices(segments)])
    return totals, first_bad(totals.isfinite())


def halves(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, Tensor, int]:
    """Means of the v with and without sign bit, float32 [s] each, 0 if none; and first non-finite segment, or -1."""
    v = values_of(gradient, memory).double()
    lows, highs = [], []
    for part in slices(segments):
        minus = v[part].signbit()
        lows.append(torch.where(minus, v[part], 0.0).sum() / minus.sum().clamp_min(1))
        highs.append(torch.where(minus, 0.0, v[part]).sum() / (~minus).sum().clamp_min(1))
    low, high = torch.stack(lows), torch.stack(highs)
    return low.float(), high.float(), first_bad(low.isfinite() & high.isfinite())


def write_cast(
    gradient: Tensor, memory: Tensor | None, segments: Segments, out: Tensor, dtype: torch.dtype
) -> int:
    """Round v to 16 bits, clipped to the largest finite value; returns the first non-finite segment, or -1.

    The memory becomes v - sent. Sums are clipped to float32's largest value.
    """
    v = gradient if memory is None else (gradient + memory).clamp(-_LARGEST, _LARGEST)
    bad = first_not_finite(v, None, segments)
    most = torch.finfo(dtype).max
    sent = v.clamp(-most, most).to(dtype)
    out.copy_(sent.view(torch.uint8))
    if memory is not None:
        memory.copy_(v - sent.float())
    return bad


def write_signs(
    gradient: Tensor, memory: Tensor | None, segments: Segments, low: Tensor, high: Tensor, out: Tensor
) -> None:
    """Write bit 0 where v is negative (decodes to the segment's `low`), else 1 (`high`); memory = v - sent."""
    v = values_of(gradient, memory)
    minus = v.signbit()
    starts = segments.starts_of(1)
    for s, part in enumerate(slices(segments)):
        out[starts[s] : starts[s + 1]] = to_planes((~minus[part]).to(torch.uint8), 1)
        if memory is not None:
            memory[part] = v[part] - torch.where(minus[part], low[s], high[s])


def write_plain_signs(gradient: Tensor, segments: Segments, out: Tensor) -> int:
    """Write the signs of the gradient as `write_signs` does; returns the first non-finite segment, or -1."""
    one = torch.ones(len(segments), device=gradient.device)
    write_signs(gradient, None, segments, -one, one, out)
    return first_not_finite(gradient, None, segments)


def write_momentum(gradient: Tensor, memory: Tensor, segments: Segments, share: float, out: Tensor) -> int:
    """Add (gradient - memory) * share to the memory, and write its signs as `write_signs` does.

    Returns:
        First segment whose gradient is not finite, if that is found late, or -1.
    """
    memory.add_((gradient - memory) * share)
    write_plain_signs(memory, segments, out)
    return -1


def write_levels(
    gradient: Tensor,
    memory: Tensor | None,
    segments: Segments,
    norms: Tensor,
    levels: int,
    key: int,
    out: Tensor,
) -> None:
    """Write signed levels floor(|v| * levels / norm + u) as bytes, u in [0, 1) with 24 bits; memory = v - sent."""
    v = values_of(gradient, memory)
    inverse = torch.where(norms > 0, float(levels << 24) / norms, 0.0)
    steps = divide_ieee(norms, levels)
    for s, part in enumerate(slices(segments)):
        fixed = (v[part].abs() * inverse[s]).to(torch.int64).clamp_max(levels << 24)
        level = (fixed + (words(key, segments, s, v.device) >> 8)) >> 24
        signed = torch.where(v[part].signbit(), -level, level)
        out[part] = signed.to(torch.int8).view(torch.uint8)
        if memory is not None:
            memory[part] = v[part] - signed.float() * steps[s]


def write_ternary(
    gradient: Tensor, memory: Tensor | None, segments: Segments, tops: Tensor, key: int, out: Tensor
) -> None:
    """Write codes 1 (+top) and 2 (-top) where |v| / top > u, else 0; u in [0, 1) with 24 bits; memory = v - sent."""
    v = values_of(gradient, memory)
    inverse = torch.where(tops > 0, 1.0 / tops, 0.0)
    starts = segments.starts_of(2)
    for s, part in enumerate(slices(segments)):
        limit = (words(key, segments, s, v.device) >> 8).float() * 2.0**-24
        sent = v[part].abs() * inverse[s] > limit
        minus = v[part].signbit()
        codes = torch.where(sent, torch.where(minus, 2, 1), 0).to(torch.uint8)
        out[starts[s] : starts[s + 1]] = to_planes(codes, 2)
        if memory is not None:
            memory[part] = v[part] - torch.where(sent, torch.where(minus, -tops[s], tops[s]), 0.0)


def add_cast(payloads: Tensor, out: Tensor, scale: float, dtype: torch.dtype) -> None:
    """Write the sum of the rows times `scale`."""
    out.zero_()
    for row in payloads.view(dtype):
        out.add_(row.float() * scale)


def add_signs(payloads: Tensor, segments: Segments, low: Tensor, high: Tensor, out: Tensor) -> None:
    """Write the sum over rows of the level (low or high, [n, s]) of each bit."""
    out.zero_()
    starts = segments.starts_of(1)
    for r, row in enumerate(payloads):
        for s, part in enumerate(slices(segments)):
            codes = from_planes(row[starts[s] : starts[s + 1]], 1, part.stop - part.start)
            out[part] += torch.where(codes > 0, high[r, s], low[r, s])


def add_levels(payloads: Tensor, segments: Segments, steps: Tensor, out: Tensor) -> None:
    """Write the sum of signed level times step [n, s]."""
    out.zero_()
    for r, row in enumerate(payloads):
        for s, part in enumerate(slices(segments)):
            out[part] += row[part].view(torch.int8).float() * steps[r, s]


def add_ternary(payloads: Tensor, segments: Segments, tops: Tensor, out: Tensor) -> None:
    """Write the sum of 0, +top or -top, tops [n, s]."""
    out.zero_()
    starts = segments.starts_of(2)
    for r, row in enumerate(payloads):
        for s, part in enumerate(slices(segments)):
            codes = from_planes(row[starts[s] : starts[s + 1]], 2, part.stop - part.start)
            out[part] += ((codes & 1).float() - (codes >> 1).float()) * tops[r, s]
