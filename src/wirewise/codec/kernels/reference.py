"""The quantizer in plain torch operations, on any device: the definition that the fast kernels are tested against.

A row x of D columns is coded in b bits as

    zero = min(x),  step = up(max(x - zero) / L),  L = 2^b - 1
    code = min(floor((x - zero) / step + u), L),   u = (r + 0.5) / 65536,  r = 16 random bits
    x'   = zero + code * step

where up() rounds to the next bfloat16 at or above. Both ends use the transmitted zero and step, so E[x'] = x
whatever their rounding. Arithmetic is IEEE float32 up to t = (x - zero) * (2^17 / step), and whole numbers
from there: code = (floor(t) + 2r + 1) >> 17 is the formula above without another rounding, and it is the same
on every device.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from wirewise import rng
from wirewise.codec.layout import Group, MessageLayout

__all__ = [
    "MIN_STEP",
    "divide_ieee",
    "pack",
    "pack_wide",
    "unpack",
    "unpack_add",
    "unpack_aggregate",
    "unpack_wide",
]

MIN_STEP = 2.0**-108
"""Smallest step of a row that is not constant; keeps 2^17 / step finite."""

_BF16_MAX = torch.finfo(torch.bfloat16).max
_DETERMINISTIC = 1 << 16
"""2r + 1 for u = 1/2: rounds to the nearest code."""


def pack(
    x: Float[Tensor, "m d"],
    index: Int[Tensor, " n"] | None,
    layout: MessageLayout,
    out: UInt8[Tensor, " bytes"],
    key: int,
    rows: Int[Tensor, " n"],
    stochastic: bool,
    ranges: Float[Tensor, " n"] | None,
) -> int:
    """Encode messages into `out`; returns the index of the first message that cannot be encoded, or -1."""
    zeros = torch.empty(layout.num_quantized, dtype=torch.float32, device=x.device)
    steps = torch.empty_like(zeros)
    bad = [
        _pack_group(x, index, layout, group, out, key, rows, stochastic, ranges, zeros, steps)
        for group in layout.groups
    ]
    write_parameters(layout, out, zeros, steps)
    return min((m for m in bad if m >= 0), default=-1)


def _pack_group(x, index, layout, group, out, key, rows, stochastic, ranges, zeros, steps) -> int:
    if group.bits >= 16:
        return pack_wide(x, index, group, out, ranges)
    order = torch.from_numpy(group.order).to(x.device)
    block = x[order if index is None else index[order].long()]
    zero, step, good, spread = row_parameters(block, (1 << group.bits) - 1, layout.param_bytes == 4)
    if ranges is not None:
        ranges[order] = spread
    if not bool(good.all()):
        return int(group.order[int(torch.nonzero(~good)[0])])
    codes = quantize(block, zero, step, group.bits, key, rows[order.to(rows.device)] if stochastic else None)
    _rows_of(out, group).copy_(planes_to_bytes(codes, group.bits))
    place = slice(group.first_param, group.first_param + len(group.order))
    zeros[place], steps[place] = zero, step
    return -1


def row_parameters(
    block: Float[Tensor, "n d"], levels: int, narrow: bool
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Tensor, Float[Tensor, " n"]]:
    """Zero point, step, validity, and max - min of each row.

    Args:
        block: Rows to be coded, float32 [n, d].
        levels: Largest code L.
        narrow: Zero points are bfloat16, rounded down.
    """
    low, high = block.amin(dim=1), block.amax(dim=1)
    low = low + 0.0  # -0.0 becomes 0.0: equal rows give equal bytes
    zero = _bf16_down(low) if narrow else low
    spread = high - zero
    step = torch.where(spread > 0, _bf16_up(divide_ieee(spread, levels)).clamp_min(MIN_STEP), 0.0)
    step = torch.where(spread.isfinite(), step, torch.nan)  # NaN compares false above
    good = (zero + levels * step).isfinite()
    return zero, step, good, high - low


def divide_ieee(x: Tensor, by: float) -> Tensor:
    """Divide with IEEE rounding; for a scalar divisor CUDA would multiply by its rounded inverse."""
    return x / x.new_full((), by)


def _bf16_up(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Smallest bfloat16 at or above each x >= 0, as float32."""
    return ((x.contiguous().view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)


def _bf16_down(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Largest bfloat16 at or below each x, as float32."""
    bits = x.contiguous().view(torch.int32)
    return (torch.where(bits < 0, bits + 0xFFFF, bits) & -0x10000).view(torch.float32)


def quantize(
    block: Float[Tensor, "n d"],
    zero: Float[Tensor, " n"],
    step: Float[Tensor, " n"],
    bits: int,
    key: int,
    rows: Int[Tensor, " n"] | None,
) -> UInt8[Tensor, "n d"]:
    """Quantize a block of rows; rounds to nearest if `rows` is None."""
    scale = torch.where(step > 0, 131072.0 / step, 0.0)
    scaled = (block - zero[:, None]) * scale[:, None]
    levels = (1 << bits) - 1
    fixed = scaled.to(torch.int64).clamp_max(levels << 17)
    if rows is None:
        return ((fixed + _DETERMINISTIC) >> 17).to(torch.uint8)
    random = rng.uniform16(key, rows.cpu().numpy(), block.shape[1]).astype(np.int64)
    noise = torch.from_numpy(random).to(block.device) * 2 + 1
    return ((fixed + noise) >> 17).to(torch.uint8)


def planes_to_bytes(codes: UInt8[Tensor, "n d"], bits: int) -> UInt8[Tensor, "n w"]:
    """Pack codes of b bits: byte j takes columns j, j + W, j + 2W, ... from its lowest bits upward."""
    count, width = codes.shape
    planes = 8 // bits
    size = -(-width // planes)
    padded = codes.new_zeros(count, planes * size)
    padded[:, :width] = codes
    shifts = (torch.arange(planes, device=codes.device) * bits).to(torch.uint8)
    return (padded.view(count, planes, size) << shifts[:, None]).sum(dim=1, dtype=torch.uint8)


def bytes_to_planes(packed: UInt8[Tensor, "n w"], bits: int, width: int) -> UInt8[Tensor, "n d"]:
    """Inverse of `planes_to_bytes`."""
    shifts = (torch.arange(8 // bits, device=packed.device) * bits).to(torch.uint8)
    codes = (packed[:, None, :] >> shifts[:, None]) & ((1 << bits) - 1)
    return codes.reshape(len(packed), -1)[:, :width]


def pack_wide(x, index, group: Group, out: UInt8[Tensor, " bytes"], ranges: Tensor | None) -> int:
    """Encode the rows of 16 or 32 bits; returns the first message that is not finite, or -1."""
    order = torch.from_numpy(group.order).to(x.device)
    block = x[order if index is None else index[order].long()]
    if ranges is not None:
        ranges[order] = block.amax(dim=1) - block.amin(dim=1)
    good = block.isfinite().all(dim=1)
    if group.bits == 16:
        # Values between bfloat16's largest and float32's largest would round to infinity.
        block = block.clamp(-_BF16_MAX, _BF16_MAX).to(torch.bfloat16)
    _rows_of(out, group).copy_(block.contiguous().view(torch.uint8))
    return -1 if bool(good.all()) else int(group.order[int(torch.nonzero(~good)[0])])


def unpack_wide(buffer: UInt8[Tensor, " bytes"], group: Group) -> Float[Tensor, "n d"]:
    """Decode the rows of 16 or 32 bits."""
    kind = torch.bfloat16 if group.bits == 16 else torch.float32
    return _rows_of(buffer, group).clone().view(kind).to(torch.float32)


def _rows_of(buffer: UInt8[Tensor, " bytes"], group: Group) -> UInt8[Tensor, "n w"]:
    return buffer[group.offset : group.offset + group.size_bytes].view(len(group.order), group.row_bytes)


def write_parameters(layout: MessageLayout, out: Tensor, zeros: Tensor, steps: Tensor) -> None:
    """Write zero points and steps behind the codes, at possibly unaligned offsets."""
    if not layout.num_quantized:
        return
    if layout.param_bytes == 4:
        zeros = zeros.to(torch.bfloat16)
    out[layout.zeros_offset : layout.steps_offset].copy_(zeros.view(torch.uint8))
    out[layout.steps_offset : layout.size_bytes].copy_(steps.to(torch.bfloat16).view(torch.uint8))


def read_parameters(layout: MessageLayout, buffer: Tensor) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Zero points and steps of the quantized rows, as float32."""
    kind = torch.bfloat16 if layout.param_bytes == 4 else torch.float32
    zeros = buffer[layout.zeros_offset : layout.steps_offset].clone().view(kind)
    steps = buffer[layout.steps_offset : layout.size_bytes].clone().view(torch.bfloat16)
    return zeros.to(torch.float32), steps.to(torch.float32)


def decode(buffer: UInt8[Tensor, " bytes"], layout: MessageLayout) -> Float[Tensor, "n d"]:
    """Decode all messages, in message order."""
    zeros, steps = read_parameters(layout, buffer)
    result = torch.empty(len(layout), layout.width, dtype=torch.float32, device=buffer.device)
    for group in layout.groups:
        order = torch.from_numpy(group.order).to(buffer.device)
        if group.bits >= 16:
            result[order] = unpack_wide(buffer, group)
            continue
        place = slice(group.first_param, group.first_param + len(group.order))
        codes = bytes_to_planes(_rows_of(buffer, group), group.bits, layout.width).to(torch.float32)
        result[order] = codes * steps[place, None] + zeros[place, None]
    return result


def unpack(
    buffer: UInt8[Tensor, " bytes"], layout: MessageLayout, out: Float[Tensor, "n d"], scale: float
) -> None:
    """Write `scale` times each decoded row."""
    out.copy_(decode(buffer, layout) * scale)


def unpack_add(
    buffer: UInt8[Tensor, " bytes"],
    layout: MessageLayout,
    index: Int[Tensor, " n"],
    out: Float[Tensor, "m d"],
    scale: float,
) -> None:
    """Add `scale` times decoded row i to `out[index[i]]`."""
    out.index_add_(0, index.long(), decode(buffer, layout) * scale)


def unpack_aggregate(
    buffer: UInt8[Tensor, " bytes"],
    layout: MessageLayout,
    indptr: Int[Tensor, " r1"],
    indices: Int[Tensor, " e"],
    weight: Float[Tensor, " e"],
    out: Float[Tensor, "r d"],
) -> None:
    """Add to `out[r]` the weighted sum of the messages of row r of a CSR matrix."""
    target = torch.repeat_interleave(torch.arange(len(out), device=out.device), indptr.diff().long())
    out.index_add_(0, target, decode(buffer, layout)[indices.long()] * weight[:, None])
