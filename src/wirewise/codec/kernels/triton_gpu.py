"""The quantizer as Triton kernels: several rows per program, one launch per bit width.

Arithmetic is that of `reference.py`, to the bit: divisions round to nearest (`div_rn`), multiplications and
additions are not fused (`enable_fp_fusion=False`), and codes are whole numbers from there.
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
_MAX_ROWS = 16
_PACKED, _UNPACKED = 1024, 2048
"""Bytes of the rows that a program takes at most, if it takes several: the fastest on an H100 for 64 to 602 columns."""
_SUMMED = 1024
"""Columns of a row that a program sums at most."""
_MAX_HELD = 64
"""Values that a thread keeps in registers at most, from finding the range of its rows to coding them."""
_HELD_PACKED, _HELD_WIDE = 16384, 32768
"""Columns of the longest rows that are kept so, to be coded in up to 8 bits, and in 16 or 32; of more, values spill."""
_PART = 2048
"""Columns of a block of those rows of 16 and 32 bits that take several."""


@triton.jit
def mix32(x):
    """Apply `wirewise.rng.mix32` to uint32 values."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def row_key_of(key, row):
    """Apply `wirewise.rng.row_key` to a uint32 key and an int64 global row id."""
    low = (row & 0xFFFFFFFF).to(tl.uint32)
    high = ((row >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return mix32(key ^ mix32(low ^ mix32(high + 0x9E3779B9)))


@triton.jit
def _ordered(bits):
    """Bits of floats as integers in the order of the floats, -0.0 below 0.0; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _among(value, mask, low, high):
    """Ordered bits of the lowest and of the highest values so far, and of these values."""
    bits = _ordered(value.to(tl.int32, bitcast=True))
    return tl.where(mask, tl.minimum(low, bits), low), tl.where(mask, tl.maximum(high, bits), high)


@triton.jit
def _ends(low, high):
    """Smallest and largest value of each row and whether all are finite, from ordered bits [rows, columns]."""
    lowest, highest = tl.min(low, axis=1), tl.max(high, axis=1)
    finite = (highest < 0x7F800000) & (lowest > -0x7F800001)
    smallest = _ordered(lowest).to(tl.float32, bitcast=True)
    return smallest, _ordered(highest).to(tl.float32, bitcast=True), finite


@triton.jit
def _range(row_ptr, there, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Smallest and largest value of each row and whether all are finite; reads the rows."""
    low = tl.full((ROWS, BLOCK), 0x7FFFFFFF, tl.int32)
    high = tl.full((ROWS, BLOCK), -0x80000000, tl.int32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = there & (column < width)
        low, high = _among(tl.load(row_ptr + column, mask=mask, other=0.0), mask, low, high)
    return _ends(low, high)


@triton.jit
def _hold(row_ptr, there, width, stride, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets of `_range`, and the parts of the rows, which start `stride` columns apart and fit in a block each."""
    low = tl.full((ROWS, BLOCK), 0x7FFFFFFF, tl.int32)
    high = tl.full((ROWS, BLOCK), -0x80000000, tl.int32)
    local = tl.arange(0, BLOCK)[None, :]
    held = ()
    for part in tl.static_range(PARTS):
        column = local + part * stride
        mask = there & (local < stride) & (column < width)
        value = tl.load(row_ptr + column, mask=mask, other=0.0)
        low, high = _among(value, mask, low, high)
        held += (value,)  # type: ignore[assignment]
    smallest, largest, finite = _ends(low, high)
    return smallest, largest, finite, held


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


@triton.jit
def _put(out_ptr, bits, there, BYTES: tl.constexpr):
    """Write the upper bytes of words, which need not be aligned there."""
    for part in tl.static_range(BYTES):
        byte = bits.to(tl.uint32, bitcast=True) >> ((part + 4 - BYTES) * 8)
        tl.store(out_ptr + part, byte.to(tl.uint8), mask=there)


@triton.jit
def _get(ptr, there, BYTES: tl.constexpr):
    """Floats of which `_put` wrote the upper bytes."""
    bits = tl.load(ptr, mask=there, other=0).to(tl.uint32) << ((4 - BYTES) * 8)
    for part in tl.static_range(1, BYTES):
        byte = tl.load(ptr + part, mask=there, other=0).to(tl.uint32)
        bits = bits | (byte << ((part + 4 - BYTES) * 8))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _source(index_ptr, order_ptr, count, ROWS: tl.constexpr, INDEXED: tl.constexpr):
    """Places of the program's rows in their group, which of them there are, their messages, and their rows."""
    place = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = place < count
    message = tl.load(order_ptr + place, mask=there, other=0)
    row = message
    if INDEXED:
        row = tl.load(index_ptr + message, mask=there, other=0).to(tl.int64)
    return place, there, message, row


@triton.jit
def _code(value, zero, scale, random, LEVELS: tl.constexpr, STOCHASTIC: tl.constexpr):
    fixed = tl.minimum(((value - zero) * scale).to(tl.int32), LEVELS << 17)
    if STOCHASTIC:
        return (fixed + 2 * random.to(tl.int32) + 1) >> 17
    return (fixed + 65536) >> 17


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
    count,
    width,
    size,
    half,
    BITS: tl.constexpr,
    ZERO_BYTES: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    INDEXED: tl.constexpr,
    TRACED: tl.constexpr,
    PAIRED: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    """Codes of rows.

    PAIRED: planes are halves, or parts of halves, of a row, so that two columns of a hash are packed together.
    HELD: rows are read once, as the bytes of one fit in BLOCK_BYTES, those of half a row with 8 bits.
    """
    LEVELS: tl.constexpr = (1 << BITS) - 1
    PLANES: tl.constexpr = 8 // BITS
    PARTS: tl.constexpr = 2 if BITS == 8 else PLANES
    place, there, message, source = _source(index_ptr, order_ptr, count, ROWS, INDEXED)
    row_ptr, row_there = (x_ptr + source * width)[:, None], there[:, None]
    span = half if BITS == 8 else size
    if HELD:
        low, high, finite, held = _hold(row_ptr, row_there, width, span, PARTS, ROWS, BLOCK_BYTES)
    else:
        low, high, finite = _range(row_ptr, row_there, width, ROWS, BLOCK)
    zero, step, scale, last = _parameters(low, high, LEVELS, ZERO_BYTES == 2)
    expressible = (last.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    tl.atomic_min(bad_ptr + place * 0, message, mask=there & ((finite & expressible) == 0))
    _put(zeros_ptr + place * ZERO_BYTES, zero.to(tl.int32, bitcast=True), there, ZERO_BYTES)
    _put(steps_ptr + place * 2, step.to(tl.int32, bitcast=True), there, 2)
    if TRACED:
        tl.store(ranges_ptr + message, high - tl.where(low == 0.0, 0.0, low), mask=there)
    row_key = tl.zeros((ROWS, 1), tl.uint32)
    if STOCHASTIC:
        row_key = row_key_of(key.to(tl.uint32), tl.load(rows_ptr + message, mask=there, other=0))[:, None]
    zero, scale = zero[:, None], scale[:, None]
    for start in range(0, span, BLOCK_BYTES):
        byte = start + tl.arange(0, BLOCK_BYTES)[None, :]
        inside = row_there & (byte < span)
        target_ptr = out_ptr + place[:, None] * size + byte
        packed = tl.zeros((ROWS, BLOCK_BYTES), tl.int32)
        if PAIRED:
            PAIRS: tl.constexpr = (PLANES + 1) // 2
            for plane in tl.static_range(PAIRS):
                column = byte + plane * size
                both = inside & (column + half < width)
                if HELD:
                    left, right = held[plane], held[plane + PAIRS]
                else:
                    left = tl.load(row_ptr + column, mask=inside, other=0.0)
                    right = tl.load(row_ptr + column + half, mask=both, other=0.0)
                word = tl.zeros((ROWS, BLOCK_BYTES), tl.uint32)
                if STOCHASTIC:
                    word = mix32(row_key + column.to(tl.uint32) * 0x9E3779B9)
                one = _code(left, zero, scale, word & 0xFFFF, LEVELS, STOCHASTIC)
                two = tl.where(both, _code(right, zero, scale, word >> 16, LEVELS, STOCHASTIC), 0)
                if BITS == 8:
                    packed = one
                    tl.store(target_ptr + half, two.to(tl.uint8), mask=both)
                else:
                    packed = packed | (one << (plane * BITS)) | (two << ((plane + PAIRS) * BITS))
        else:
            for plane in tl.static_range(PLANES):
                column = byte + plane * size
                mask = inside & (column < width)
                if HELD:
                    value = held[plane]
                else:
                    value = tl.load(row_ptr + column, mask=mask, other=0.0)
                random = tl.zeros((ROWS, BLOCK_BYTES), tl.uint32)
                if STOCHASTIC:
                    counter = tl.where(column < half, column, column - half).to(tl.uint32)
                    random = mix32(row_key + counter * 0x9E3779B9)
                    random = tl.where(column < half, random & 0xFFFF, random >> 16)
                code = tl.where(mask, _code(value, zero, scale, random, LEVELS, STOCHASTIC), 0)
                packed = packed | (code << (plane * BITS))
        tl.store(target_ptr, packed.to(tl.uint8), mask=inside)


@triton.jit
def _value(packed, shift, zero, step, BITS: tl.constexpr):
    """Values of the codes that packed bytes hold from bit `shift` on."""
    return ((packed >> shift) & ((1 << BITS) - 1)).to(tl.float32) * step + zero


@triton.jit
def _unpack_kernel(
    codes_ptr,
    order_ptr,
    index_ptr,
    zeros_ptr,
    steps_ptr,
    factor,
    out_ptr,
    count,
    width,
    size,
    BITS: tl.constexpr,
    ZERO_BYTES: tl.constexpr,
    INDEXED: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    place, there, _, target = _source(index_ptr, order_ptr, count, ROWS, INDEXED)
    zero = _get(zeros_ptr + place * ZERO_BYTES, there, ZERO_BYTES)[:, None]
    step = _get(steps_ptr + place * 2, there, 2)[:, None]
    row_ptr = (out_ptr + target * width)[:, None]
    for start in range(0, size, BLOCK_BYTES):
        byte = start + tl.arange(0, BLOCK_BYTES)[None, :]
        inside = there[:, None] & (byte < size)
        packed = tl.load(codes_ptr + place[:, None] * size + byte, mask=inside, other=0).to(tl.int32)
        for plane in tl.static_range(8 // BITS):
            column = byte + plane * size
            mask = inside & (column < width)
            value = _value(packed, plane * BITS, zero, step, BITS) * factor
            if ADD:
                tl.atomic_add(row_ptr + column, value, mask=mask, sem="relaxed")
            else:
                tl.store(row_ptr + column, value, mask=mask)


@triton.jit
def _put_wide(target_ptr, value, mask):
    """Write the bits of floats as whole numbers of 32 bits, or of 16, rounded."""
    bits = value.to(tl.int32, bitcast=True)
    if target_ptr.dtype.element_ty == tl.int16:
        # To the nearest and to even, but at most bfloat16's largest value.
        magnitude = bits & 0x7FFFFFFF
        rounded = tl.minimum((magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16, 0x7F7F)
        bits = rounded | ((bits >> 16) & 0x8000)
    tl.store(target_ptr, bits.to(target_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _pack_wide_kernel(
    x_ptr,
    index_ptr,
    order_ptr,
    out_ptr,
    ranges_ptr,
    bad_ptr,
    count,
    width,
    INDEXED: tl.constexpr,
    TRACED: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows as int32 bits of float32, or int16 bits of bfloat16, whichever `out_ptr` has.

    HELD: blocks of a row, which is read once; none if it is too long for registers.
    """
    place, there, message, source = _source(index_ptr, order_ptr, count, ROWS, INDEXED)
    row_ptr, row_there = (x_ptr + source * width)[:, None], there[:, None]
    if HELD:
        low, high, finite, held = _hold(row_ptr, row_there, width, BLOCK, HELD, ROWS, BLOCK)
    else:
        low, high, finite = _range(row_ptr, row_there, width, ROWS, BLOCK)
    tl.atomic_min(bad_ptr + place * 0, message, mask=there & (finite == 0))
    if TRACED:
        tl.store(ranges_ptr + message, high - low, mask=there)
    target_ptr = out_ptr + place[:, None] * width
    local = tl.arange(0, BLOCK)[None, :]
    if HELD:
        for part in tl.static_range(HELD):
            column = part * BLOCK + local
            _put_wide(target_ptr + column, held[part], row_there & (column < width))
    else:
        for start in range(0, width, BLOCK):
            column = start + local
            mask = row_there & (column < width)
            _put_wide(target_ptr + column, tl.load(row_ptr + column, mask=mask, other=0.0), mask)


@triton.jit
def _unpack_wide_kernel(
    codes_ptr,
    order_ptr,
    index_ptr,
    factor,
    out_ptr,
    count,
    width,
    INDEXED: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place, there, _, target = _source(index_ptr, order_ptr, count, ROWS, INDEXED)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = there[:, None] & (column < width)
        bits = tl.load(codes_ptr + place[:, None] * width + column, mask=mask, other=0).to(tl.int32)
        if codes_ptr.dtype.element_ty == tl.int16:
            bits = bits << 16
        value = bits.to(tl.float32, bitcast=True) * factor
        if ADD:
            tl.atomic_add(out_ptr + target[:, None] * width + column, value, mask=mask, sem="relaxed")
        else:
            tl.store(out_ptr + target[:, None] * width + column, value, mask=mask)


@triton.jit
def _add_packed(
    total,
    start_ptr,
    place,
    there,
    width,
    span,
    zero,
    step,
    weight,
    BITS: tl.constexpr,
    PLANES: tl.constexpr,
):
    """Sums of the planes of a row with `weight` times a message of up to 8 bits added."""
    RUNS: tl.constexpr = PLANES * BITS // 8
    size = (width * BITS + 7) // 8
    held = ()
    for run in tl.static_range(RUNS):
        byte = place + run * span
        held += (tl.load(start_ptr + byte, mask=there & (byte < size), other=0).to(tl.int32),)  # type: ignore[assignment]
    sums = ()
    for plane in tl.static_range(PLANES):
        if RUNS > 0:
            value = _value(held[plane % RUNS], plane // RUNS * BITS, zero, step, BITS)
        else:
            column = place + plane * span
            byte = column % size
            packed = tl.load(start_ptr + byte, mask=there & (column < width), other=0).to(tl.int32)
            value = _value(packed, column // size * BITS, zero, step, BITS)
        sums += (total[plane] + value * weight,)  # type: ignore[assignment]
    return sums


@triton.jit
def _add_wide(total, start_ptr, place, there, width, span, weight, BITS: tl.constexpr, PLANES: tl.constexpr):
    """`_add_packed` of a message of 16 or 32 bits, which need not be aligned: `_get` reads its bytes."""
    sums = ()
    for plane in tl.static_range(PLANES):
        column = place + plane * span
        value = _get(start_ptr + column * (BITS // 8), there & (column < width), BITS // 8)
        sums += (total[plane] + value * weight,)  # type: ignore[assignment]
    return sums


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
    span,
    WIDTHS: tl.constexpr,
    PLANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Weighted sums of messages, each byte of them read once a row.

    WIDTHS: sum of the bit widths that occur. PLANES: runs of `span` columns in which sums of a row are kept, which are
    the planes of the narrowest messages, so that one thread sums the columns of all codes of a byte; one, where planes
    of other messages begin elsewhere: a byte is then read for each of its codes.
    """
    row_ptr = out_ptr + tl.program_id(0).to(tl.int64) * width
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = place < span
    total = ()
    for plane in tl.static_range(PLANES):
        column = place + plane * span
        total += (tl.load(row_ptr + column, mask=there & (column < width), other=0.0),)  # type: ignore[assignment]
    entry_ptr = indptr_ptr + tl.program_id(0)
    for entry in range(tl.load(entry_ptr), tl.load(entry_ptr + 1)):
        message = tl.load(indices_ptr + entry).to(tl.int64)
        weight = tl.load(weight_ptr + entry)
        start_ptr = buffer_ptr + tl.load(offset_ptr + message)
        bits = WIDTHS
        if WIDTHS & (WIDTHS - 1):
            bits = tl.load(bits_ptr + message).to(tl.int32)
        for power in tl.static_range(6):
            if WIDTHS & (1 << power):
                if bits == 1 << power:
                    if power < 4:
                        slot = tl.load(slot_ptr + message)
                        zero, step = tl.load(zeros_ptr + slot), tl.load(steps_ptr + slot)
                        total = _add_packed(
                            total,
                            start_ptr,
                            place,
                            there,
                            width,
                            span,
                            zero,
                            step,
                            weight,
                            1 << power,
                            PLANES,
                        )
                    else:
                        total = _add_wide(
                            total, start_ptr, place, there, width, span, weight, 1 << power, PLANES
                        )
    for plane in tl.static_range(PLANES):
        column = place + plane * span
        tl.store(row_ptr + column, total[plane], mask=there & (column < width))


_EXACT: dict[str, Any] = {"enable_fp_fusion": False}


def check_device(device: torch.device) -> None:
    """Raise unless Triton can run on the device: CUDA, or any device in its interpreter (TRITON_INTERPRET=1).

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


def _rows_at_once(columns: int, maximum: int) -> int:
    """Rows that a program takes, a power of two."""
    return max(1, min(_MAX_ROWS, maximum // columns))


def _packing(parts: int, size: int) -> tuple[int, int, int, bool]:
    """Bytes of a row that a program of `_pack_kernel` codes at once, its rows, its warps; whether it holds the rows.

    Args:
        parts: Values that are coded for a byte, or pair of bytes.
        size: Bytes of a row, or pairs.
    """
    whole = triton.next_power_of_2(size)
    held = parts * whole <= _HELD_PACKED
    at_once = whole if held else min(_MAX_BLOCK, whole)
    many = _rows_at_once(at_once, _PACKED)
    warps = max(2, many * at_once // 512)
    if held:
        warps = max(warps, parts * many * at_once // (32 * _MAX_HELD))
    return at_once, many, warps, held


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
    """Encode messages into `out`; returns the index of the first message that cannot be encoded, or -1."""
    bad = torch.full((1,), len(layout), dtype=torch.int64, device=x.device)
    ids, places = rows.to(x.device), x if index is None else index
    spans, modes = (
        x if ranges is None else ranges,
        {"INDEXED": index is not None, "TRACED": ranges is not None},
    )
    for group in layout.groups:
        order, count = _tables(layout, x.device)["order"][group.bits], len(group.order)
        columns = min(_MAX_BLOCK, triton.next_power_of_2(layout.width))
        if group.bits >= 16:
            columns = columns if layout.width <= columns else _PART
            parts = triton.cdiv(layout.width, columns)
            held = parts * columns <= _HELD_WIDE
            many = _rows_at_once(columns, _UNPACKED)
            codes, aligned = _wide(out, group)
            _pack_wide_kernel[(triton.cdiv(count, many),)](
                x,
                places,
                order,
                codes,
                spans,
                bad,
                count,
                layout.width,
                **modes,
                HELD=parts if held else 0,
                ROWS=many,
                BLOCK=columns,
                num_warps=4 if parts == 1 else 16 if held and parts * columns > 256 * _MAX_HELD else 8,
            )
            if not aligned:
                out[group.offset : group.offset + group.size_bytes].copy_(codes.view(torch.uint8))
            continue
        half = (layout.width + 1) // 2
        pairs = half if group.bits == 8 else group.row_bytes
        bytes_at_once, many, warps, held = _packing(max(2, 8 // group.bits), pairs)
        _pack_kernel[(triton.cdiv(count, many),)](
            x,
            places,
            order,
            ids,
            key,
            out[group.offset :],
            *_parameters_of(out, layout, group),
            spans,
            bad,
            count,
            layout.width,
            group.row_bytes,
            half,
            BITS=group.bits,
            ZERO_BYTES=layout.param_bytes - 2,
            STOCHASTIC=stochastic,
            PAIRED=group.bits == 8 or half == pairs * (4 // group.bits),
            HELD=held,
            ROWS=many,
            BLOCK=columns,
            BLOCK_BYTES=bytes_at_once,
            num_warps=warps,
            **modes,
            **_EXACT,
        )
    first = int(bad.item())
    return first if first < len(layout) else -1


def _parameters_of(buffer: Tensor, layout: MessageLayout, group: Group) -> tuple[Tensor, Tensor]:
    """Bytes of a buffer from the first zero point and the first step of a group on."""
    zeros = layout.zeros_offset + (layout.param_bytes - 2) * group.first_param
    return buffer[zeros:], buffer[layout.steps_offset + 2 * group.first_param :]


def _wide(buffer: Tensor, group: Group) -> tuple[Tensor, bool]:
    """Rows of 16 or 32 bits as whole numbers; whether they are the buffer's, or a copy, where it is not aligned."""
    kind = torch.int16 if group.bits == 16 else torch.int32
    rows = buffer[group.offset : group.offset + group.size_bytes]
    if rows.data_ptr() % kind.itemsize or rows.storage_offset() % kind.itemsize:
        return rows.clone().view(kind), False
    return rows.view(kind), True


def unpack(buffer: Tensor, layout: MessageLayout, out: Tensor, scale: float) -> None:
    """Write `scale` times each decoded row."""
    _unpack(buffer, layout, None, out, scale)


def unpack_add(buffer: Tensor, layout: MessageLayout, index: Tensor, out: Tensor, scale: float) -> None:
    """Add `scale` times decoded row i to `out[index[i]]`."""
    _unpack(buffer, layout, index, out, scale)


def _unpack(buffer: Tensor, layout: MessageLayout, index: Tensor | None, out: Tensor, scale: float) -> None:
    modes, factor = {"INDEXED": index is not None, "ADD": index is not None}, float(scale)
    for group in layout.groups:
        order, count = _tables(layout, out.device)["order"][group.bits], len(group.order)
        places = order if index is None else index
        if group.bits >= 16:
            columns = min(_MAX_BLOCK, triton.next_power_of_2(layout.width))
            many = _rows_at_once(columns, _UNPACKED)
            codes, _ = _wide(buffer, group)
            _unpack_wide_kernel[(triton.cdiv(count, many),)](
                codes, order, places, factor, out, count, layout.width, **modes, ROWS=many, BLOCK=columns
            )
            continue
        at_once = min(1024, triton.next_power_of_2(group.row_bytes))
        many = _rows_at_once(at_once, _UNPACKED)
        _unpack_kernel[(triton.cdiv(count, many),)](
            buffer[group.offset :],
            order,
            places,
            *_parameters_of(buffer, layout, group),
            factor,
            out,
            count,
            layout.width,
            group.row_bytes,
            BITS=group.bits,
            ZERO_BYTES=layout.param_bytes - 2,
            **modes,
            ROWS=many,
            BLOCK_BYTES=at_once,
            **_EXACT,
        )


def unpack_aggregate(
    buffer: Tensor, layout: MessageLayout, indptr: Tensor, indices: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Add to `out[r]` the weighted sum of the messages of row r of a CSR matrix."""
    if not layout.groups:
        return
    zeros, steps = reference.read_parameters(layout, buffer)
    tables = _tables(layout, out.device)
    planes, span = _planes(layout)
    block = min(_SUMMED // planes, triton.next_power_of_2(span))
    _aggregate_kernel[(len(out), triton.cdiv(span, block))](
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
        span,
        WIDTHS=sum(layout.counts),
        PLANES=planes,
        BLOCK=block,
        num_warps=max(1, min(8, block // 64)),
        **_EXACT,
    )


def _planes(layout: MessageLayout) -> tuple[int, int]:
    """Planes of the narrowest messages, and columns of each; 1 and all where planes of others begin elsewhere."""
    narrowest = layout.groups[0]
    if narrowest.bits < 8 and all(
        group.row_bytes * narrowest.bits == narrowest.row_bytes * group.bits
        for group in layout.groups
        if group.bits < 8
    ):
        return 8 // narrowest.bits, narrowest.row_bytes
    return 1, layout.width
