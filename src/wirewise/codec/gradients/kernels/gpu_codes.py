"""Triton kernels that reduce blocks, and write and add codes of 1 to 16 bits: one program per block.

A program reads its row of the table of blocks: segment, first element, elements, first byte, and place of the first
element in the segment, int64. Arithmetic is that of the reference, to the bit: multiplications and additions are not
fused (`enable_fp_fusion=False`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from wirewise.codec.kernels.triton_gpu import mix32, row_key_of

__all__ = [
    "add_cast",
    "add_codes",
    "add_planes",
    "block_halves",
    "block_peaks",
    "block_sums",
    "compensate",
    "write_cast",
    "write_codes",
    "write_signs",
    "write_ternary",
]


@triton.jit
def _planes(table_ptr, BITS: tl.constexpr, BYTES: tl.constexpr):
    """Where the program's block lies, its elements [planes, bytes] by byte, and which of them there are.

    Segment, first element, first byte, place in the segment, bytes, elements from the first on, mask.
    """
    row_ptr = table_ptr + tl.program_id(0).to(tl.int64) * 5
    count = tl.load(row_ptr + 2)
    size = (count * BITS + 7) // 8
    byte = tl.arange(0, BYTES)[None, :]
    local = tl.arange(0, 8 // BITS)[:, None] * size + byte
    mask = (byte < size) & (local < count)
    return (
        tl.load(row_ptr),
        tl.load(row_ptr + 1),
        tl.load(row_ptr + 3),
        tl.load(row_ptr + 4),
        size,
        local,
        mask,
    )


@triton.jit
def _value(gradient_ptr, memory_ptr, place, mask, KEEP: tl.constexpr):
    v = tl.load(gradient_ptr + place, mask=mask, other=0.0)
    if KEEP:
        v = v + tl.load(memory_ptr + place, mask=mask, other=0.0)
    return v


@triton.jit
def _draw(key, ids_ptr, segment, column):
    """24 random bits of each element."""
    row = row_key_of(key.to(tl.uint32), tl.load(ids_ptr + segment))
    return (mix32(row + column.to(tl.uint32) * 0x9E3779B9) >> 8).to(tl.int32)


@triton.jit
def _store_bytes(out_ptr, start, size, codes, BITS: tl.constexpr, BYTES: tl.constexpr):
    """Put the codes (int32 [planes, bytes], 0 where there is no element) of each byte together."""
    shift = tl.arange(0, 8 // BITS)[:, None] * BITS
    byte = tl.arange(0, BYTES)
    packed = tl.sum(codes << shift, axis=0)
    tl.store(out_ptr + start + byte, packed.to(tl.uint8), mask=byte < size)


@triton.jit
def _block(table_ptr, BLOCK: tl.constexpr):
    """Segment, first element, elements from the first on, and which of them there are."""
    row_ptr = table_ptr + tl.program_id(0).to(tl.int64) * 5
    local = tl.arange(0, BLOCK)
    return tl.load(row_ptr), tl.load(row_ptr + 1), local, local < tl.load(row_ptr + 2)


@triton.jit
def block_peaks(
    gradient_ptr, memory_ptr, table_ptr, maximum, out_ptr, KEEP: tl.constexpr, BLOCK: tl.constexpr
):
    """Bits of the largest |v| of each block, int32; those of NaN are above those of infinity."""
    _, first, local, mask = _block(table_ptr, BLOCK)
    v = _value(gradient_ptr, memory_ptr, first + local, mask, KEEP)
    # Sums are cut to `most`, infinity leaves them as they are; a comparison with NaN is false.
    v = tl.where(v > maximum, maximum, tl.where(v < -maximum, -maximum, v))
    top = tl.max(tl.where(mask, v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), axis=0)
    tl.store(out_ptr + tl.program_id(0), top)


@triton.jit
def block_sums(
    gradient_ptr,
    memory_ptr,
    table_ptr,
    out_ptr,
    SQUARE: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum of |v|, or of v squared, of each block, float64."""
    _, first, local, mask = _block(table_ptr, BLOCK)
    v = tl.abs(_value(gradient_ptr, memory_ptr, first + local, mask, KEEP)).to(tl.float64)
    if SQUARE:
        v = v * v
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.where(mask, v, 0.0), axis=0))


@triton.jit
def block_halves(
    gradient_ptr, memory_ptr, table_ptr, low_ptr, high_ptr, count_ptr, KEEP: tl.constexpr, BLOCK: tl.constexpr
):
    """Sums of the v with and without sign bit, float64, and the count of each, per block."""
    _, first, local, mask = _block(table_ptr, BLOCK)
    v = _value(gradient_ptr, memory_ptr, first + local, mask, KEEP)
    minus = mask & (v.to(tl.int32, bitcast=True) < 0)
    wide = tl.where(mask, v.to(tl.float64), 0.0)
    place = tl.program_id(0)
    tl.store(low_ptr + place, tl.sum(tl.where(minus, wide, 0.0), axis=0))
    tl.store(high_ptr + place, tl.sum(tl.where(minus, 0.0, wide), axis=0))
    tl.store(count_ptr + place, tl.sum(minus.to(tl.int64), axis=0))


@triton.jit
def write_cast(
    gradient_ptr,
    memory_ptr,
    table_ptr,
    largest,
    maximum,
    out_ptr,
    bad_ptr,
    KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write v, clipped to `maximum`, as float16 (bfloat16 if `out_ptr` is int16), and the first non-finite segment."""
    segment, first, local, mask = _block(table_ptr, BLOCK)
    v = _value(gradient_ptr, memory_ptr, first + local, mask, KEEP)
    if KEEP:
        v = tl.where(v > largest, largest, tl.where(v < -largest, -largest, v))
    top = tl.max(tl.where(mask, v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), axis=0)
    tl.atomic_min(bad_ptr, segment, mask=top >= 0x7F800000)
    sent = tl.where(v > maximum, maximum, tl.where(v < -maximum, -maximum, v))
    if out_ptr.dtype.element_ty == tl.int16:
        # bfloat16 by hand, to the nearest and to even: conversions in Triton's interpreter cut off.
        raw = sent.to(tl.int32, bitcast=True)
        raw = raw + 0x7FFF + ((raw >> 16) & 1)
        tl.store(out_ptr + first + local, (raw >> 16).to(tl.int16), mask=mask)
        sent = (raw & -0x10000).to(tl.float32, bitcast=True)
    else:
        half = sent.to(tl.float16)
        tl.store(out_ptr + first + local, half, mask=mask)
        sent = half.to(tl.float32)
    if KEEP:
        tl.store(memory_ptr + first + local, v - sent, mask=mask)


@triton.jit
def add_cast(rows_ptr, out_ptr, scale, size, row_size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of the rows, float16, or bfloat16 as int16, times `scale`."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(ROWS):
        value = tl.load(rows_ptr + place, mask=mask, other=0)
        if rows_ptr.dtype.element_ty == tl.int16:
            value = (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        total += value.to(tl.float32) * scale
        rows_ptr += row_size
    tl.store(out_ptr + place, total, mask=mask)


@triton.jit
def write_signs(
    gradient_ptr,
    memory_ptr,
    table_ptr,
    low_ptr,
    high_ptr,
    share,
    out_ptr,
    KEEP: tl.constexpr,
    MOVE: tl.constexpr,
    BYTES: tl.constexpr,
):
    segment, first, start, _, size, local, mask = _planes(table_ptr, 1, BYTES)
    place = first + local
    v = _value(gradient_ptr, memory_ptr, place, mask, KEEP)
    if MOVE:
        old = tl.load(memory_ptr + place, mask=mask, other=0.0)
        v = old + (v - old) * share
        tl.store(memory_ptr + place, v, mask=mask)
    minus = v.to(tl.int32, bitcast=True) < 0
    if KEEP:
        sent = tl.where(minus, tl.load(low_ptr + segment), tl.load(high_ptr + segment))
        tl.store(memory_ptr + place, v - sent, mask=mask)
    _store_bytes(out_ptr, start, size, (mask & (minus == 0)).to(tl.int32), 1, BYTES)


@triton.jit(do_not_specialize=["key"])
def write_ternary(
    gradient_ptr,
    memory_ptr,
    table_ptr,
    ids_ptr,
    top_ptr,
    inverse_ptr,
    key,
    out_ptr,
    KEEP: tl.constexpr,
    BYTES: tl.constexpr,
):
    segment, first, start, column, size, local, mask = _planes(table_ptr, 2, BYTES)
    place = first + local
    v = _value(gradient_ptr, memory_ptr, place, mask, KEEP)
    limit = _draw(key, ids_ptr, segment, column + local).to(tl.float32) * 5.9604644775390625e-08
    chosen = mask & (tl.abs(v) * tl.load(inverse_ptr + segment) > limit)
    minus = v.to(tl.int32, bitcast=True) < 0
    if KEEP:
        top = tl.load(top_ptr + segment)
        tl.store(memory_ptr + place, v - tl.where(chosen, tl.where(minus, -top, top), 0.0), mask=mask)
    _store_bytes(out_ptr, start, size, tl.where(chosen, tl.where(minus, 2, 1), 0), 2, BYTES)


@triton.jit(do_not_specialize=["key"])
def write_codes(
    gradient_ptr,
    memory_ptr,
    table_ptr,
    ids_ptr,
    inverse_ptr,
    step_ptr,
    key,
    maximum,
    limit,
    out_ptr,
    OWN: tl.constexpr,
    DRAWN: tl.constexpr,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Write signed codes; with OWN, a block has its own scale and clips sums to `limit`, else its segment's scale."""
    segment, first, start, column, size, local, mask = _planes(table_ptr, BITS, BYTES)
    place = first + local
    scale = segment
    if OWN:
        scale = tl.program_id(0).to(tl.int64)
    v = _value(gradient_ptr, memory_ptr, place, mask, KEEP)
    if OWN and KEEP:
        v = tl.where(v > limit, limit, tl.where(v < -limit, -limit, v))
    fixed = tl.minimum((tl.abs(v) * tl.load(inverse_ptr + scale)).to(tl.int32), maximum)
    noise = tl.full((8 // BITS, BYTES), 1 << 23, tl.int32)
    if DRAWN:
        noise = _draw(key, ids_ptr, segment, column + local)
    level = (fixed + noise) >> 24
    signed = tl.where(v.to(tl.int32, bitcast=True) < 0, -level, level)
    if KEEP:
        tl.store(memory_ptr + place, v - signed.to(tl.float32) * tl.load(step_ptr + scale), mask=mask)
    _store_bytes(out_ptr, start, size, tl.where(mask, signed & ((1 << BITS) - 1), 0), BITS, BYTES)


@triton.jit
def add_planes(
    rows_ptr,
    table_ptr,
    low_ptr,
    high_ptr,
    out_ptr,
    segments,
    row_bytes,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Sum the level of each code: one bit (low, high), or two bits (0, high, low for codes 0, 1, 2)."""
    segment, first, start, _, size, local, mask = _planes(table_ptr, BITS, BYTES)
    total = tl.zeros((8 // BITS, BYTES), tl.float32)
    byte = tl.arange(0, BYTES)[None, :]
    shift = tl.arange(0, 8 // BITS)[:, None] * BITS
    here_ptr = rows_ptr + start
    for r in range(ROWS):
        packed = tl.load(here_ptr + byte, mask=byte < size, other=0).to(tl.int32)
        here_ptr += row_bytes
        code = (packed >> shift) & ((1 << BITS) - 1)
        low, high = tl.load(low_ptr + r * segments + segment), tl.load(high_ptr + r * segments + segment)
        if BITS == 1:
            total += tl.where(code > 0, high, low)
        else:
            total += tl.where(code == 1, high, tl.where(code == 2, low, 0.0))
    tl.store(out_ptr + first + local, total, mask=mask)


@triton.jit
def add_codes(
    rows_ptr,
    table_ptr,
    step_ptr,
    out_ptr,
    scales,
    row_bytes,
    ROWS: tl.constexpr,
    OWN: tl.constexpr,
    BITS: tl.constexpr,
    BYTES: tl.constexpr,
):
    segment, first, start, _, size, local, mask = _planes(table_ptr, BITS, BYTES)
    scale = segment
    if OWN:
        scale = tl.program_id(0).to(tl.int64)
    total = tl.zeros((8 // BITS, BYTES), tl.float32)
    byte = tl.arange(0, BYTES)[None, :]
    shift = tl.arange(0, 8 // BITS)[:, None] * BITS
    here_ptr = rows_ptr + start
    for r in range(ROWS):
        packed = tl.load(here_ptr + byte, mask=byte < size, other=0).to(tl.int32)
        here_ptr += row_bytes
        # The highest bit of a code is its sign.
        half = 1 << (BITS - 1)
        code = (((packed >> shift) & (2 * half - 1)) ^ half) - half
        total += code.to(tl.float32) * tl.load(step_ptr + r * scales + scale)
    tl.store(out_ptr + first + local, total, mask=mask)


@triton.jit
def compensate(gradient_ptr, rest_ptr, momentum_ptr, share, maximum, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    u = tl.load(momentum_ptr + place, mask=mask) * share + tl.load(gradient_ptr + place, mask=mask)
    w = tl.load(rest_ptr + place, mask=mask) + u
    tl.store(
        momentum_ptr + place, tl.where(u > maximum, maximum, tl.where(u < -maximum, -maximum, u)), mask=mask
    )
    tl.store(rest_ptr + place, tl.where(w > maximum, maximum, tl.where(w < -maximum, -maximum, w)), mask=mask)
