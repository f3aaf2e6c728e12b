"""CUDA versions of the gradient kernels, in Triton; `reference.py` defines each.

Per-segment work and matrix products use the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
from torch import Tensor

from wirewise.codec.gradients.kernels import gpu_codes
from wirewise.codec.gradients.kernels.pieces import (
    BLOCK,
    Bounds,
    SelectedElements,
    all_finite,
    first_bad,
    slices,
    values_of,
)
from wirewise.codec.gradients.kernels.reference import REFUSES_LATE
from wirewise.codec.gradients.kernels.reference_blocks import MOST, SCALED, steps_of
from wirewise.codec.gradients.kernels.reference_factors import (
    add_product,
    left_factor,
    orthogonalise,
    right_factor,
)
from wirewise.codec.gradients.kernels.reference_select import above, accumulate, add_sparse, draw, take
from wirewise.codec.gradients.segments import Segments
from wirewise.codec.kernels.reference import divide_ieee
from wirewise.codec.kernels.triton_gpu import check_device

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
    "check_device",
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

_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
_KINDS = {torch.float16: torch.float16, torch.bfloat16: torch.int16}
"""How kernels see the 16 bits of a value."""
_SAMPLED, _STRIDE = 1 << 17, 61
"""Segments from this size on are sampled first, every so manieth element."""
_LARGEST = torch.finfo(torch.float32).max
_tables: WeakKeyDictionary[Segments, dict[Any, Tensor]] = WeakKeyDictionary()


def _table(segments: Segments, size: int, bits: int, device: torch.device) -> Tensor:
    """The table of blocks of so many elements that `gpu_codes` reads, [blocks, 5]; copied once."""
    known = _tables.setdefault(segments, {})
    if (size, bits, device) not in known:
        firsts = segments.blocks_of(size)
        owner = np.repeat(np.arange(len(segments)), np.diff(firsts))
        column = (np.arange(len(owner)) - firsts[owner]) * size
        count = np.minimum(size, segments.sizes[owner] - column)
        byte = segments.starts_of(bits)[owner] + column * bits // 8
        rows = np.stack([owner, segments.offsets[owner] + column, count, byte, column], axis=1)
        known[size, bits, device] = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(device)
    return known[size, bits, device]


def _ids(segments: Segments, device: torch.device) -> Tensor:
    known = _tables.setdefault(segments, {})
    if device not in known:
        known[device] = torch.from_numpy(segments.ids).to(device)
    return known[device]


def _by_segment(blocks: Tensor, segments: Segments, reduce: str) -> Tensor:
    """Sums or maxima of the blocks of `BLOCK` elements of each segment, in a fixed order; float64 [s]."""
    known = _tables.setdefault(segments, {})
    if ("blocks", blocks.device) not in known:
        counts = np.diff(segments.blocks_of(BLOCK))
        known["blocks", blocks.device] = torch.from_numpy(counts).to(blocks.device)
    return torch.segment_reduce(blocks.double(), reduce, lengths=known["blocks", blocks.device], unsafe=True)


def _peaks(
    gradient: Tensor, memory: Tensor | None, segments: Segments, size: int, maximum: float = torch.inf
) -> Tensor:
    """Bits of the largest |v| of each block of `size` elements, int32 [blocks]; sums are clamped to `maximum`."""
    table = _table(segments, size, 8, gradient.device)
    tops = torch.empty(len(table), dtype=torch.int32, device=gradient.device)
    kept = gradient if memory is None else memory
    arguments = (gradient, kept, table, maximum, tops)
    gpu_codes.block_peaks[(len(table),)](*arguments, KEEP=memory is not None, BLOCK=size, **_EXACT)
    return tops


def peaks(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, int]:
    bits = _by_segment(_peaks(gradient, memory, segments, BLOCK), segments, "max").to(torch.int32)
    found = bits.view(torch.float32)
    return found, first_bad(found.isfinite())


def first_not_finite(gradient: Tensor, memory: Tensor | None, segments: Segments) -> int:
    return peaks(gradient, memory, segments)[1]


def sums(gradient: Tensor, memory: Tensor | None, segments: Segments, power: int) -> tuple[Tensor, int]:
    table = _table(segments, BLOCK, 8, gradient.device)
    parts = torch.empty(len(table), dtype=torch.float64, device=gradient.device)
    kept = gradient if memory is None else memory
    modes = {"SQUARE": power == 2, "KEEP": memory is not None, "BLOCK": BLOCK}
    gpu_codes.block_sums[(len(table),)](gradient, kept, table, parts, **modes, **_EXACT)
    totals = _by_segment(parts, segments, "sum")
    return totals, first_bad(totals.isfinite())


def halves(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, Tensor, int]:
    table = _table(segments, BLOCK, 8, gradient.device)
    lows = torch.empty(len(table), dtype=torch.float64, device=gradient.device)
    highs, counts = torch.empty_like(lows), torch.empty(len(table), dtype=torch.int64, device=lows.device)
    arguments = (gradient, gradient if memory is None else memory, table, lows, highs, counts)
    gpu_codes.block_halves[(len(table),)](*arguments, KEEP=memory is not None, BLOCK=BLOCK, **_EXACT)
    minus = _by_segment(counts, segments, "sum")
    plus = torch.from_numpy(segments.sizes).to(minus.device) - minus
    low = _by_segment(lows, segments, "sum") / minus.clamp_min(1)
    high = _by_segment(highs, segments, "sum") / plus.clamp_min(1)
    return low.float(), high.float(), first_bad(low.isfinite() & high.isfinite())


def write_cast(
    gradient: Tensor, memory: Tensor | None, segments: Segments, out: Tensor, dtype: torch.dtype
) -> int:
    table = _table(segments, BLOCK, 8, gradient.device)
    bad = torch.full((1,), len(segments), dtype=torch.int64, device=gradient.device)
    kept = gradient if memory is None else memory
    arguments = (gradient, kept, table, _LARGEST, torch.finfo(dtype).max, out.view(_KINDS[dtype]), bad)
    gpu_codes.write_cast[(len(table),)](*arguments, KEEP=memory is not None, BLOCK=BLOCK, **_EXACT)
    first = int(bad.item())
    return first if first < len(segments) else -1


def add_cast(payloads: Tensor, out: Tensor, scale: float, dtype: torch.dtype) -> None:
    rows = payloads.view(_KINDS[dtype])
    grid = (triton.cdiv(len(out), BLOCK),)
    arguments = (rows, out, scale, len(out), rows.shape[1])
    gpu_codes.add_cast[grid](*arguments, ROWS=len(rows), BLOCK=BLOCK, **_EXACT)


def _signs(
    gradient: Tensor,
    memory: Tensor | None,
    segments: Segments,
    levels: tuple[Tensor, Tensor] | None,
    share: float | None,
    out: Tensor,
) -> None:
    table = _table(segments, BLOCK, 1, gradient.device)
    kept = gradient if memory is None else memory
    low, high = levels or (gradient, gradient)
    modes = {"KEEP": levels is not None and memory is not None, "MOVE": share is not None}
    arguments = (gradient, kept, table, low, high, share or 0.0, out)
    gpu_codes.write_signs[(len(table),)](*arguments, **modes, BYTES=BLOCK // 8, **_EXACT)


def write_signs(
    gradient: Tensor, memory: Tensor | None, segments: Segments, low: Tensor, high: Tensor, out: Tensor
) -> None:
    _signs(gradient, memory, segments, (low, high), None, out)


def write_plain_signs(gradient: Tensor, segments: Segments, out: Tensor) -> int:
    _signs(gradient, None, segments, None, None, out)
    return first_not_finite(gradient, None, segments)


def write_momentum(gradient: Tensor, memory: Tensor, segments: Segments, share: float, out: Tensor) -> int:
    _signs(gradient, memory, segments, None, share, out)
    return -1


def write_ternary(
    gradient: Tensor, memory: Tensor | None, segments: Segments, tops: Tensor, key: int, out: Tensor
) -> None:
    table, ids = _table(segments, BLOCK, 2, gradient.device), _ids(segments, gradient.device)
    inverse = torch.where(tops > 0, 1.0 / tops, 0.0)
    kept = gradient if memory is None else memory
    arguments = (gradient, kept, table, ids, tops, inverse, key, out)
    modes = {"KEEP": memory is not None, "BYTES": BLOCK // 4}
    gpu_codes.write_ternary[(len(table),)](*arguments, **modes, **_EXACT)


def _codes(
    gradient: Tensor,
    memory: Tensor | None,
    segments: Segments,
    steps: Tensor,
    inverse: Tensor,
    maximum: int,
    bits: int,
    size: int,
    key: int | None,
    out: Tensor,
) -> None:
    """Codes of blocks of `size` elements, clamped to `maximum`, and the residual of v."""
    table, ids = _table(segments, size, bits, gradient.device), _ids(segments, gradient.device)
    kept = gradient if memory is None else memory
    arguments = (gradient, kept, table, ids, inverse, steps, key or 0, maximum << 24, MOST, out)
    modes = {"OWN": size == SCALED, "DRAWN": key is not None, "KEEP": memory is not None, "BITS": bits}
    gpu_codes.write_codes[(len(table),)](*arguments, **modes, BYTES=size * bits // 8, **_EXACT)


def write_levels(
    gradient: Tensor,
    memory: Tensor | None,
    segments: Segments,
    norms: Tensor,
    levels: int,
    key: int,
    out: Tensor,
) -> None:
    inverse = torch.where(norms > 0, float(levels << 24) / norms, 0.0)
    _codes(gradient, memory, segments, divide_ieee(norms, levels), inverse, levels, 8, BLOCK, key, out)


def write_blocks(
    gradient: Tensor, memory: Tensor | None, segments: Segments, bits: int, key: int | None, out: Tensor
) -> tuple[Tensor, int]:
    tops = _peaks(gradient, memory, segments, SCALED, torch.inf if memory is None else MOST).view(
        torch.float32
    )
    steps = steps_of(tops, bits)
    finite = tops.isfinite()
    if bool(finite.all()):
        inverse = torch.where(steps > 0, float(1 << 24) / steps, 0.0)
        most = (1 << (bits - 1)) - 1
        _codes(gradient, memory, segments, steps, inverse, most, bits, SCALED, key, out)
        return steps, -1
    block = int(torch.nonzero(~finite)[0])
    return steps, int(np.searchsorted(segments.blocks_of(SCALED), block, side="right")) - 1


def _add_planes(
    payloads: Tensor, segments: Segments, low: Tensor, high: Tensor, bits: int, out: Tensor
) -> None:
    table = _table(segments, BLOCK, bits, out.device)
    rows, width = payloads.shape
    arguments = (payloads, table, low.contiguous(), high.contiguous(), out, len(segments), width)
    modes = {"ROWS": rows, "BITS": bits, "BYTES": BLOCK * bits // 8}
    gpu_codes.add_planes[(len(table),)](*arguments, **modes, **_EXACT)


def add_signs(payloads: Tensor, segments: Segments, low: Tensor, high: Tensor, out: Tensor) -> None:
    _add_planes(payloads, segments, low, high, 1, out)


def add_ternary(payloads: Tensor, segments: Segments, tops: Tensor, out: Tensor) -> None:
    _add_planes(payloads, segments, -tops, tops, 2, out)


def _add_codes(
    payloads: Tensor, segments: Segments, steps: Tensor, bits: int, size: int, out: Tensor
) -> None:
    table = _table(segments, size, bits, out.device)
    arguments = (payloads, table, steps.contiguous(), out, steps.shape[1], payloads.shape[1])
    modes = {"ROWS": len(payloads), "OWN": size == SCALED, "BITS": bits, "BYTES": size * bits // 8}
    gpu_codes.add_codes[(len(table),)](*arguments, **modes, **_EXACT)


def add_levels(payloads: Tensor, segments: Segments, steps: Tensor, out: Tensor) -> None:
    _add_codes(payloads, segments, steps, 8, BLOCK, out)


def add_blocks(payloads: Tensor, segments: Segments, steps: Tensor, bits: int, out: Tensor) -> None:
    _add_codes(payloads, segments, steps, bits, SCALED, out)


def accumulate_above(
    gradient: Tensor,
    memory: Sequence[Tensor],
    share: float,
    masked: bool,
    segments: Segments,
    bounds: Bounds,
    key: int,
    into: SelectedElements,
) -> int:
    grid = (triton.cdiv(len(gradient), 1024),)
    arguments = (gradient, *memory, share, _LARGEST, len(gradient))
    gpu_codes.compensate[grid](*arguments, BLOCK=1024, **_EXACT)
    return above(memory[0], memory if masked else memory[:1], segments, bounds, key, into)


def largest(
    gradient: Tensor, memory: Tensor | None, segments: Segments, counts: np.ndarray
) -> tuple[Tensor, Tensor, int]:
    """Select the largest elements of each segment by a threshold; no segment is sorted."""
    v = values_of(gradient, memory)
    bad, chosen = first_not_finite(v, None, segments), []
    for part, count in zip(slices(segments), counts.tolist(), strict=True):
        magnitudes = v[part].abs()
        places = _among(magnitudes, count)
        found = magnitudes[places]
        limit = found.topk(count, sorted=False).values.min()
        above_limit, equal = found > limit, found == limit
        equal &= equal.cumsum(0) <= count - above_limit.sum()
        chosen.append(places[above_limit | equal] + part.start)
    indices = torch.cat(chosen).to(torch.int32)
    if bad >= 0:
        return indices, gradient.new_zeros(len(indices)), bad
    if memory is None:
        return indices, take(gradient, indices, clear=False), bad
    memory.add_(gradient)
    return indices, take(memory, indices, clear=True), bad


def _among(magnitudes: Tensor, count: int) -> Tensor:
    """Ascending places among which the `count` largest are: from a sample, few more where the segment is large."""
    if len(magnitudes) >= _SAMPLED:
        # A quarter more than needed: too few happens rarely, and then all elements are looked at.
        sample = magnitudes[::_STRIDE]
        edge = sample.topk(min(len(sample), 5 * count // (4 * _STRIDE) + 8), sorted=False).values.min()
        places = torch.nonzero(magnitudes >= edge).flatten()
        if len(places) >= count:
            return places
    return torch.arange(len(magnitudes), device=magnitudes.device)
