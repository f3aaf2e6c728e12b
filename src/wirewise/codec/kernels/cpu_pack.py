"""Numba kernels that encode: one pass over a gathered row finds its range, a second one quantizes and packs it.

They are written so that LLVM vectorises every inner loop:

- the range is found on the float bits as integers, which also exposes NaN and infinity at no cost;
- one 32-bit hash rounds two columns, and rounding is an integer addition and a shift;
- the planar byte layout turns packing into whole-vector shifts.
"""

from __future__ import annotations

import numpy as np

from wirewise.codec.kernels.words import as_bits, as_float, copy_bytes, entry, inline, kernel, prefetch
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["pack_rows", "pack_wide"]

_MIN_STEP = np.float32(2.0**-108)
_FIXED_ONE = np.float32(131072.0)
_BLOCK_BYTES = 1 << 13
_BLOCK_ROWS = 64
_HALF = np.uint32(1 << 16)


@kernel
def _range(bits):
    """Smallest and largest value of a row, and whether all are finite, from float bits as uint32 [d].

    Bits of positive floats are ordered as integers; those of negative floats lie above, ordered backwards.
    """
    low, high, top = np.int32(0x7FFFFFFF), np.int32(-0x80000000), np.uint32(0)
    for c in range(len(bits)):
        u = bits[c]
        s = np.int32(u)
        low = min(low, s)
        high = max(high, s)
        top = max(top, u)
    # Infinity and NaN have the largest bits of either sign, so the extremes tell of them.
    finite = high < np.int32(0x7F800000) and top < np.uint32(0xFF800000)
    # Where there is a negative float, the unsigned maximum is the most negative; where all are, the signed minimum is
    # the one nearest to zero.
    smallest = np.uint32(top) if top >= np.uint32(0x80000000) else np.uint32(low)
    largest = np.uint32(high) if high >= 0 else np.uint32(low)
    return as_float(smallest), as_float(largest), finite


@kernel
def _parameters(low, high, levels, narrow):
    """Zero point, bits of the bfloat16 step, and 2^17 / step of a row with this range."""
    # -0.0 becomes 0.0: rows that are equal give equal bytes.
    zero = np.float32(low + np.float32(0.0))
    if narrow:
        raw = as_bits(zero)
        # Rounded down, so that no value lies below the zero point and codes are never negative.
        if raw >= np.uint32(0x80000000):
            raw = np.uint32(raw + np.uint32(0xFFFF))
        zero = as_float(np.uint32(raw & np.uint32(0xFFFF0000)))
    spread = np.float32(high - zero)
    if not spread > np.float32(0.0):
        return zero, np.float32(0.0), np.float32(0.0)
    ratio = np.float32(spread / np.float32(levels))
    # Rounded up, so that the largest value needs no code beyond the last one.
    raw = np.uint32(np.uint32(as_bits(ratio) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000))
    step = max(as_float(raw), _MIN_STEP)
    return zero, step, np.float32(_FIXED_ONE / step)


@inline
def _scan(x_bits, index, order, start, stop, levels, narrow, sources, zeros, steps, scales, ranges):
    """Find source row and parameters of rows start..stop; returns the first bad message or -1."""
    traced = len(ranges) > 0
    for i in range(start, stop):
        message = order[i]
        source = index[message] if len(index) else message
        low, high, finite = _range(x_bits[source])
        zero, step, scale = _parameters(low, high, levels, narrow)
        # What the last code decodes to may overflow although all values of the row are finite.
        top = np.float32(zero + np.float32(np.float32(levels) * step))
        if not finite or not np.isfinite(top):
            return message
        sources[i - start] = source
        zeros[i] = zero
        steps[i] = np.uint16(as_bits(step) >> np.uint32(16))
        scales[i - start] = scale
        if traced:
            ranges[message] = np.float32(high - np.float32(low + np.float32(0.0)))
    return -1


@inline
def _fixed(value, zero, scale):
    """(value - zero) / step with 17 binary places, rounded down."""
    # Truncation rounds down, because no value lies below the zero point.
    return np.uint32(np.int32(np.float32(np.float32(value - zero) * scale)))


@inline
def _low(word):
    """2r + 1 for the 16 random bits of the left column."""
    return np.uint32(np.uint32(np.uint32(word << np.uint32(1)) & np.uint32(0x1FFFF)) | np.uint32(1))


@inline
def _high(word):
    """2r + 1 for the 16 random bits of the right column."""
    return np.uint32(np.uint32(word >> np.uint32(15)) | np.uint32(1))


@inline
def _add(a, b):
    return np.uint32(np.uint32(a) + np.uint32(b))


@kernel
def _pack4(left, right, zero, scale, key, target):
    """Code the halves of a row in 4 bits; they are the two planes, so a byte is done at once.

    No clamp: (x - zero) * scale exceeds 15 * 2^17 by at most 3 * 2^-24 of it, which is below one.
    """
    counter = np.uint32(key)
    for j in range(len(right)):
        word = mix32(counter)
        counter = _add(counter, GOLDEN)
        a = np.uint32(_add(_fixed(left[j], zero, scale), _low(word)) >> np.uint32(17))
        b = np.uint32(_add(_fixed(right[j], zero, scale), _high(word)) >> np.uint32(17))
        target[j] = np.uint8(a | np.uint32(b << np.uint32(4)))
    if len(left) > len(right):
        j = len(right)
        target[j] = np.uint8(_add(_fixed(left[j], zero, scale), _low(mix32(counter))) >> np.uint32(17))


@inline
def _byte(value, zero, scale, limit, noise):
    """Code of one value; clamped, because at 8 bits rounding can lift the largest above the last code."""
    fixed = min(np.int32(_fixed(value, zero, scale)), limit)
    # The noise is below 2^17, so a value is lifted by less than one level and the last code by none.
    return np.uint8(_add(np.uint32(fixed), noise) >> np.uint32(17))


@kernel
def _code(left, right, zero, scale, limit, key, codes_left, codes_right):
    """Code the halves of a row, one byte a code; column j of both halves shares one hash."""
    counter = np.uint32(key)
    for j in range(len(right)):
        word = mix32(counter)
        counter = _add(counter, GOLDEN)
        codes_left[j] = _byte(left[j], zero, scale, limit, _low(word))
        codes_right[j] = _byte(right[j], zero, scale, limit, _high(word))
    if len(left) > len(right):
        j = len(right)
        codes_left[j] = _byte(left[j], zero, scale, limit, _low(mix32(counter)))


@kernel
def _code_nearest(row, zero, scale, limit, codes):
    """Code a row to the nearest level, one byte a code."""
    for c in range(len(row)):
        codes[c] = _byte(row[c], zero, scale, limit, _HALF)


@kernel
def _merge(codes, target, bits):
    """Pack the planes of `codes`, which is zero beyond the row, into bytes."""
    size = len(target)
    if bits == 4:
        a, b = codes[:size], codes[size : 2 * size]
        for j in range(size):
            target[j] = np.uint8(a[j] | np.uint8(b[j] << np.uint8(4)))
    elif bits == 2:
        a, b = codes[:size], codes[size : 2 * size]
        c, d = codes[2 * size : 3 * size], codes[3 * size : 4 * size]
        for j in range(size):
            low = np.uint8(a[j] | np.uint8(b[j] << np.uint8(2)))
            target[j] = np.uint8(
                low | np.uint8(np.uint8(c[j] << np.uint8(4)) | np.uint8(d[j] << np.uint8(6)))
            )
    else:
        for j in range(size):
            target[j] = codes[j]
        for plane in range(1, 8):
            part = codes[plane * size : (plane + 1) * size]
            for j in range(size):
                target[j] = np.uint8(target[j] | np.uint8(part[j] << np.uint8(plane)))


@inline
def _pack_block(
    x, rows, order, key, bits, stochastic, sources, ahead, zeros, scales, codes, out, start, stop
):
    """Code and pack rows start..stop, whose parameters are known."""
    width = x.shape[1]
    half = (width + 1) // 2
    limit = np.int32(((1 << bits) - 1) << 17)
    for i in range(start, stop):
        # The row at this place of the next block: it arrives while the rest of this block is coded.
        prefetch(x, ahead[i - start], 4 * width)
        source = sources[i - start]
        zero, scale = zeros[i], scales[i - start]
        random = row_key(key, rows[order[i]])
        if not stochastic:
            _code_nearest(x[source], zero, scale, limit, codes[:width])
        elif bits == 4:
            _pack4(x[source, :half], x[source, half:], zero, scale, random, out[i])
            continue
        elif bits == 8:
            _code(
                x[source, :half], x[source, half:], zero, scale, limit, random, out[i, :half], out[i, half:]
            )
            continue
        else:
            _code(
                x[source, :half],
                x[source, half:],
                zero,
                scale,
                limit,
                random,
                codes[:half],
                codes[half:width],
            )
        if bits == 8:
            copy_bytes(codes[:width], out[i])
        else:
            _merge(codes, out[i], bits)


@kernel
def _pack_blocks(
    x,
    x_bits,
    index,
    order,
    rows,
    key,
    bits,
    narrow,
    stochastic,
    out,
    zeros,
    steps,
    ranges,
    lo,
    hi,
    sources,
    ahead,
    scales,
    codes,
):
    """`pack_rows` with scratch memory: ranges of a block of rows, then codes, while the next is fetched."""
    block = len(sources)
    levels = (1 << bits) - 1
    for start in range(lo, hi, block):
        stop = min(start + block, hi)
        # Ranges of the whole block first: its rows are still in the first cache when they are coded.
        bad = _scan(x_bits, index, order, start, stop, levels, narrow, sources, zeros, steps, scales, ranges)
        if bad >= 0:
            return bad
        for i in range(stop, min(stop + block, hi)):
            ahead[i - stop] = index[order[i]] if len(index) else order[i]
        _pack_block(
            x, rows, order, key, bits, stochastic, sources, ahead, zeros, scales, codes, out, start, stop
        )
    return -1


@entry
def pack_rows(
    x, x_bits, index, order, rows, key, bits, narrow, stochastic, out, zeros, steps, ranges, lo, hi
):
    """Pack rows lo..hi of a group; returns the first message that cannot be encoded, or -1."""
    block = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * x.shape[1])))
    sources, ahead = np.empty(block, dtype=np.int64), np.zeros(block, dtype=np.int64)
    scales = np.empty(block, dtype=np.float32)
    # Zero beyond the row once and for all: codes are written to its width only, and `_merge` takes whole bytes.
    codes = np.zeros(8 * out.shape[1], dtype=np.uint8)
    return _pack_blocks(
        x,
        x_bits,
        index,
        order,
        rows,
        key,
        bits,
        narrow,
        stochastic,
        out,
        zeros,
        steps,
        ranges,
        lo,
        hi,
        sources,
        ahead,
        scales,
        codes,
    )


@kernel
def _round_bf16(bits, target):
    """Conversion of float bits to bfloat16, to nearest even; overflow stays at the largest finite value."""
    for c in range(len(bits)):
        u = bits[c]
        odd = np.uint32(np.uint32(u >> np.uint32(16)) & np.uint32(1))
        r = np.uint32(np.uint32(u + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))
        top = min(np.uint32(r & np.uint32(0x7FFF)), np.uint32(0x7F7F))
        target[c] = np.uint16(np.uint32(r & np.uint32(0x8000)) | top)


@kernel
def _pack_wide_rows(x_bits, x_bytes, index, order, out, ranges, lo, hi, scratch, scratch_bytes):
    """`pack_wide` with its scratch row."""
    traced = len(ranges) > 0
    for i in range(lo, hi):
        message = order[i]
        source = index[message] if len(index) else message
        if i + 2 < hi:
            later = order[i + 2]
            prefetch(x_bytes, index[later] if len(index) else later, x_bytes.shape[1])
        low, high, finite = _range(x_bits[source])
        if not finite:
            return message
        if traced:
            ranges[message] = np.float32(high - low)
        if out.shape[1] == x_bytes.shape[1]:
            copy_bytes(x_bytes[source], out[i])
        else:
            _round_bf16(x_bits[source], scratch)
            copy_bytes(scratch_bytes, out[i])
    return -1


@entry
def pack_wide(x_bits, x_bytes, index, order, out, ranges, lo, hi):
    """Copy rows lo..hi of a group of 16 or 32 bits; returns the first message that is not finite, or -1."""
    scratch = np.empty(x_bits.shape[1], dtype=np.uint16)
    return _pack_wide_rows(
        x_bits, x_bytes, index, order, out, ranges, lo, hi, scratch, scratch.view(np.uint8)
    )
