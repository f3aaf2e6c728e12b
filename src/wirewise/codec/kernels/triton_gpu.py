"""The quantizer as Triton kernels: one program for each row, one launch for each bit width.

Arithmetic is that of `reference.py`, to the bit: divisions round to nearest (`div_rn`), multiplications and
additions are not fused (`enable_fp_fusion=False`), and codes are whole numbers from there. Rows of 16 and 32
bits go through torch operations, which are bound by memory already.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirewise.codec.kernels import reference
from wirewise.codec.layout import Group, MessageLayout
from wirewise.errors import CodecError

__all__ = ["check_device", "mix32", "pack", "row_key_of", "unpack", "unpack_add", "unpack_aggregate"]

_MAX_BLOCK = 4096
"""Columns that a program holds at once; wider rows take several rounds."""


@triton.jit
def mix32(x):
    """`wirewise.rng.mix32` of uint32 values."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def row_key_of(key, row):
    """`wirewise.rng.row_key` of a uint32 key and an int64 global row id."""
    low = (row & 0xFFFFFFFF).to(tl.uint32)
    high = ((row >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return mix32(key ^ mix32(low ^ mix32(high + 0x9E3779B9)))


@triton.jit
def _random16(row_key, column, half):
    """The 16 random bits of each column, as `wirewise.rng.uniform16` lays them out."""
    left = column < half
    counter = tl.where(left, column, column - half).to(tl.uint32)
    word = mix32(row_key + counter * 0x9E3779B9)
    return tl.where(left, word & 0xFFFF, word >> 16).to(tl.int32)


@triton.jit
def _as_float(bits):
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _range(row_ptr, width, BLOCK: tl.constexpr):
    """Smallest and largest value of a row and whether all are finite, by float bits ordered as integers."""
    low = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    high = tl.full((BLOCK,), -0x80000000, tl.int32)
    top = tl.zeros((BLOCK,), tl.uint32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < width
        value = tl.load(row_ptr + column, mask=mask, other=0.0)
        signed = value.to(tl.int32, bitcast=True)
        low = tl.where(mask, tl.minimum(low, signed), low)
        high = tl.where(mask, tl.maximum(high, signed), high)
        top = tl.where(mask, tl.maximum(top, value.to(tl.uint32, bitcast=True)), top)
    lowest = tl.min(low, axis=0)
    highest = tl.max(high, axis=0)
    # Compared as signed numbers: negative floats, ordered backwards, are the unsigned maximum.
    negative = tl.max((top ^ 0x80000000).to(tl.int32, bitcast=True), axis=0)
    finite = (highest < 0x7F800000) & (negative < 0x7F800000)
    smallest = tl.where(negative >= 0, negative ^ -0x80000000, lowest)
    largest = tl.where(highest >= 0, highest, lowest)
    return smallest.to(tl.float32, bitcast=True), largest.to(tl.float32, bitcast=True), finite


@triton.jit
def _parameters(low, high, LEVELS: tl.constexpr, NARROW: tl.constexpr):
    """Zero point, step, 2^17 / step of a row with this range, and the decoded value of the last code."""
    zero = tl.where(low == 0.0, 0.0, low)
    if NARROW:
        raw = zero.to(tl.int32, bitcast=True)
        raw = tl.where(raw < 0, raw + 0xFFFF, raw) & -0x10000
        zero = raw.to(tl.float32, bitcast=True)
    spread = high - zero
    varied = spread > 0.0
    ratio = tl.div_rn(tl.where(varied, spread, 1.0), LEVELS * 1.0)
    raised = (ratio.to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
    step = tl.maximum(raised.to(tl.float32, bitcast=True), 2.0**-108)
    scale = tl.where(varied, tl.div_rn(131072.0, step), 0.0)
    step = tl.where(varied, step, 0.0)
    return zero, step, scale, zero + step * LEVELS


@triton.jit(do_not_specialize=["key"])
def _pack_kernel(
    x_ptr,
    index_ptr,
    order_ptr,
    rows_ptr,
    key,
    out_ptr,
    zeros_ptr,
    steps_ptr,
    ranges_ptr,
    bad_ptr,
    width,
    size,
    half,
    BITS: tl.constexpr,
    NARROW: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    INDEXED: tl.constexpr,
    TRACED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    LEVELS: tl.constexpr = (1 << BITS) - 1
    PLANES: tl.constexpr = 8 // BITS
    place = tl.program_id(0).to(tl.int64)
    message = tl.load(order_ptr + place)
    source = message
    if INDEXED:
        source = tl.load(index_ptr + message).to(tl.int64)
    row_ptr = x_ptr + source * width
    low, high, finite = _range(row_ptr, width, BLOCK)
    zero, step, scale, last = _parameters(low, high, LEVELS, NARROW)
    expressible = (last.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    tl.atomic_min(bad_ptr, message, mask=(finite & expressible) == 0)
    tl.store(zeros_ptr + place, zero)
    tl.store(steps_ptr + place, step)
    if TRACED:
        tl.store(ranges_ptr + message, high - tl.where(low == 0.0, 0.0, low))
    row_key = tl.zeros((), tl.uint32)
    if STOCHASTIC:
        row_key = row_key_of(key.to(tl.uint32), tl.load(rows_ptr + message))
    plane = tl.arange(0, PLANES)[:, None]
    for start in range(0, size, BLOCK_BYTES):
        byte = start + tl.arange(0, BLOCK_BYTES)
        column = byte[None, :] + plane * size
        mask = (byte[None, :] < size) & (column < width)
        value = tl.where(mask, tl.load(row_ptr + column, mask=mask, other=0.0), zero)
        fixed = tl.minimum(((value - zero) * scale).to(tl.int32), LEVELS << 17)
        noise = tl.full((PLANES, BLOCK_BYTES), 65536, tl.int32)
        if STOCHASTIC:
            noise = 2 * _random16(row_key, column, half) + 1
        code = tl.where(mask, (fixed + noise) >> 17, 0)
        packed = tl.sum(code << (plane * BITS), axis=0)
        tl.store(out_ptr + place * size + byte, packed.to(tl.uint8), mask=byte < size)


@triton.jit
def _unpack_kernel(
    codes_ptr,
    order_ptr,
    index_ptr,
    zeros_ptr,
    steps_ptr,
    factor_ptr,
    out_ptr,
    width,
    size,
    BITS: tl.constexpr,
    INDEXED: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    PLANES: tl.constexpr = 8 // BITS
    place = tl.program_id(0).to(tl.int64)
    target = tl.load(order_ptr + place)
    if INDEXED:
        target = tl.load(index_ptr + target).to(tl.int64)
    zero, step, factor = tl.load(zeros_ptr + place), tl.load(steps_ptr + place), tl.load(factor_ptr)
    plane = tl.arange(0, PLANES)[:, None]
    for start in range(0, size, BLOCK_BYTES):
        byte = start + tl.arange(0, BLOCK_BYTES)
        packed = tl.load(codes_ptr + place * size + byte, mask=byte < size, other=0).to(tl.int32)
        code = (packed[None, :] >> (plane * BITS)) & ((1 << BITS) - 1)
        column = byte[None, :] + plane * size
        mask = (byte[None, :] < size) & (column < width)
        value = (code.to(tl.float32) * step + zero) * factor
        if ADD:
            tl.atomic_add(out_ptr + target * width + column, value, mask=mask)
        else:
            tl.store(out_ptr + target * width + column, value, mask=mask)


@triton.jit
def _aggregate_kernel(
    buffer_ptr,
    bits_ptr,
    offset_ptr,
    slot_ptr,
    zeros_ptr,
    steps_ptr,
    indptr_ptr,
    indices_ptr,
    weight_ptr,
    out_ptr,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    total = tl.load(out_ptr + row * width + column, mask=mask, other=0.0)
    for entry in range(tl.load(indptr_ptr + row), tl.load(indptr_ptr + row + 1)):
        message = tl.load(indices_ptr + entry).to(tl.int64)
        weight = tl.load(weight_ptr + entry)
        bits = tl.load(bits_ptr + message).to(tl.int32)
        start_ptr = buffer_ptr + tl.load(offset_ptr + message)
        if bits < 16:
            slot = tl.load(slot_ptr + message)
            size = (width * bits + 7) // 8
            plane = column // size
            packed = tl.load(start_ptr + (column - plane * size), mask=mask, other=0).to(tl.int32)
            code = (packed >> (plane * bits)) & ((1 << bits) - 1)
            value = code.to(tl.float32) * tl.load(steps_ptr + slot) + tl.load(zeros_ptr + slot)
        else:
            # Rows need not be aligned: put the value together from its bytes, the highest last.
            raw = tl.zeros((BLOCK,), tl.uint32)
            count = bits // 8
            for part in range(count):
                piece = tl.load(start_ptr + column * count + part, mask=mask, other=0).to(tl.uint32)
                raw = raw | (piece << ((part + 4 - count) * 8))
            value = raw.to(tl.float32, bitcast=True)
        total = total + value * weight
    tl.store(out_ptr + row * width + column, total, mask=mask)


_EXACT: dict[str, Any] = {"enable_fp_fusion": False}


def check_device(device: torch.device) -> None:
    """Raise unless Triton can run here: on CUDA, or anywhere in its interpreter (TRITON_INTERPRET=1).

    Raises:
        CodecError: The tensors are on another device.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise CodecError(
            f"tensors are on {device}, Triton kernels take CUDA tensors; use implementation='auto'"
        )


def _tables(layout: MessageLayout, device: torch.device) -> dict[str, Any]:
    """The layout's tables on a device; copied once."""
    if device not in layout.device_tables:
        layout.device_tables[device] = {
            "order": {group.bits: torch.from_numpy(group.order).to(device) for group in layout.groups},
            "bits": torch.from_numpy(layout.bits).to(device),
            "offset": torch.from_numpy(layout.row_offset).to(device),
            "slot": torch.from_numpy(layout.param_slot).to(device),
        }
    return layout.device_tables[device]


def _block(columns: int) -> int:
    return min(_MAX_BLOCK, triton.next_power_of_2(columns))


def _block_bytes(group: Group) -> int:
    """Bytes of a row that a program packs at once, so that their columns fit `_MAX_BLOCK`."""
    return min(_MAX_BLOCK * group.bits // 8, triton.next_power_of_2(group.row_bytes))


def pack(
    x: Tensor,
    index: Tensor | None,
    layout: MessageLayout,
    out: Tensor,
    key: int,
    rows: Tensor,
    stochastic: bool,
    ranges: Tensor | None,
) -> int:
    """Encode messages into `out`; returns the number of the first message that cannot be coded, or -1."""
    zeros = torch.empty(layout.num_quantized, dtype=torch.float32, device=x.device)
    steps = torch.empty_like(zeros)
    bad = torch.full((1,), len(layout), dtype=torch.int64, device=x.device)
    ids = rows.to(x.device)
    first_wide = len(layout)
    for group in layout.groups:
        if group.bits >= 16:
            message = reference.pack_wide(x, index, group, out, ranges)
            first_wide = min(first_wide, message if message >= 0 else len(layout))
            continue
        _pack_kernel[(len(group.order),)](
            x,
            x if index is None else index,
            _tables(layout, x.device)["order"][group.bits],
            ids,
            key,
            out[group.offset :],
            zeros[group.first_param :],
            steps[group.first_param :],
            zeros if ranges is None else ranges,
            bad,
            layout.width,
            group.row_bytes,
            (layout.width + 1) // 2,
            BITS=group.bits,
            NARROW=layout.param_bytes == 4,
            STOCHASTIC=stochastic,
            INDEXED=index is not None,
            TRACED=ranges is not None,
            BLOCK=_block(layout.width),
            BLOCK_BYTES=_block_bytes(group),
            **_EXACT,
        )
    reference.write_parameters(layout, out, zeros, steps)
    first = min(first_wide, int(bad.item()) if layout.num_quantized else len(layout))
    return first if first < len(layout) else -1


def unpack(buffer: Tensor, layout: MessageLayout, out: Tensor, scale: float) -> None:
    """Write `scale` times each decoded row."""
    _unpack(buffer, layout, None, out, scale)


def unpack_add(buffer: Tensor, layout: MessageLayout, index: Tensor, out: Tensor, scale: float) -> None:
    """Add `scale` times decoded row i to `out[index[i]]`."""
    _unpack(buffer, layout, index, out, scale)


def _unpack(buffer: Tensor, layout: MessageLayout, index: Tensor | None, out: Tensor, scale: float) -> None:
    zeros, steps = reference.read_parameters(layout, buffer)
    factor = torch.full((1,), scale, dtype=torch.float32, device=out.device)
    for group in layout.groups:
        order = _tables(layout, out.device)["order"][group.bits]
        if group.bits >= 16:
            rows = reference.unpack_wide(buffer, group) * scale
            if index is None:
                out[order] = rows
            else:
                out.index_add_(0, index[order].long(), rows)
            continue
        _unpack_kernel[(len(group.order),)](
            buffer[group.offset :],
            order,
            order if index is None else index,
            zeros[group.first_param :],
            steps[group.first_param :],
            factor,
            out,
            layout.width,
            group.row_bytes,
            BITS=group.bits,
            INDEXED=index is not None,
            ADD=index is not None,
            BLOCK_BYTES=_block_bytes(group),
            **_EXACT,
        )


def unpack_aggregate(
    buffer: Tensor, layout: MessageLayout, indptr: Tensor, indices: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Add to `out[r]` the weighted sum of the messages of row r of a CSR matrix."""
    zeros, steps = reference.read_parameters(layout, buffer)
    tables = _tables(layout, out.device)
    block = min(1024, triton.next_power_of_2(layout.width))
    _aggregate_kernel[(len(out), triton.cdiv(layout.width, block))](
        buffer,
        tables["bits"],
        tables["offset"],
        tables["slot"],
        zeros,
        steps,
        indptr,
        indices,
        weight,
        out,
        layout.width,
        BLOCK=block,
        **_EXACT,
    )
