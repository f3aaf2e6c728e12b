"""Numba kernels that write and add codes of 1, 2 and 8 bits; a segment is cut into blocks of planes.

Kernels of signs and levels make several passes over a block in cache, so that each loop vectorises.
"""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.cpu_values import ABS, EXPONENT, keep, part_of, peak, value
from wirewise.codec.gradients.kernels.pieces import BLOCK as _BLOCK
from wirewise.codec.kernels.words import as_bits, as_float, entry, inline, kernel
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = [
    "add_levels",
    "add_levels_of",
    "add_signs",
    "add_ternary",
    "levels_of",
    "write_levels",
    "write_momentum",
    "write_plain_signs",
    "write_signs",
    "write_ternary",
]

_ONE, _TWO = np.uint32(1), np.uint32(2)
_SIGN, _DRAW = np.uint32(31), np.uint32(8)
_SIGN_BIT, _TOP_BYTE = np.uint32(1 << 31), np.uint32(24)
_UNIT = np.float32(2.0**-24)


@inline
def _word(key, column):
    """The 32 random bits of a column."""
    return mix32(np.uint32(np.uint32(key) + np.uint32(np.uint32(column) * np.uint32(GOLDEN))))


@inline
def _merge(target, j, code, shift):
    target[j] = np.uint8(np.uint32(target[j]) | np.uint32(np.uint32(code) << np.uint32(shift)))


@kernel
def _pack_signs(values, target):
    """Bit 1 of each value without sign bit."""
    size, count = len(target), len(values)
    # All planes have these bytes: eight elements are put together in a register.
    whole = max(0, count - 7 * size)
    for j in range(whole):
        code = np.uint32(0)
        for plane in range(8):
            minus = np.uint32(as_bits(values[np.uint64(j + plane * size)]) & _SIGN_BIT)
            code = np.uint32(np.uint32(code >> _ONE) | minus)
        target[j] = np.uint8(np.uint32(np.uint32(~code) >> _TOP_BYTE))
    for j in range(whole, size):
        code = np.uint32(0)
        for plane in range((count - 1 - j) // size + 1):
            plus = np.uint32(np.uint32(as_bits(values[j + plane * size]) >> _SIGN) ^ _ONE)
            code = np.uint32(code | np.uint32(plus << np.uint32(plane)))
        target[j] = np.uint8(code)


@kernel
def _add_to(memory, gradient):
    for j in range(len(memory)):
        memory[j] = np.float32(gradient[j] + memory[j])


@kernel
def _keep_rest(memory, low, high):
    for j in range(len(memory)):
        v = memory[j]
        memory[j] = np.float32(v - (low if np.uint32(as_bits(v) >> _SIGN) else high))


@entry
def write_signs(gradient, memory, offsets, starts, lows, highs, out):
    """Write bit 0 where v is negative (decodes to the segment's low), else 1 (high); memory = v - sent."""
    for s in range(len(lows)):
        byte = starts[s]
        for lo in range(offsets[s], offsets[s + 1], _BLOCK):
            hi = min(lo + _BLOCK, offsets[s + 1])
            target = out[byte : byte + (hi - lo + 7) // 8]
            if memory is None:
                _pack_signs(gradient[lo:hi], target)
            else:
                _add_to(memory[lo:hi], gradient[lo:hi])
                _pack_signs(memory[lo:hi], target)
                _keep_rest(memory[lo:hi], lows[s], highs[s])
            byte += len(target)


@entry
def write_plain_signs(gradient, offsets, starts, out):
    """Write the signs of the gradient, read once; returns the first non-finite segment, or -1."""
    for s in range(len(offsets) - 1):
        byte, top = starts[s], np.uint32(0)
        for lo in range(offsets[s], offsets[s + 1], _BLOCK):
            part = gradient[lo : min(lo + _BLOCK, offsets[s + 1])]
            top = max(top, peak(part, None)[1])
            target = out[byte : byte + (len(part) + 7) // 8]
            _pack_signs(part, target)
            byte += len(target)
        if top >= EXPONENT:
            return s
    return -1


@kernel
def _move(memory, gradient, share):
    """Move the memory towards the gradient; its largest bits."""
    top = np.uint32(0)
    for j in range(len(memory)):
        m = np.float32(memory[j] + np.float32(np.float32(gradient[j] - memory[j]) * share))
        memory[j] = m
        top = max(top, np.uint32(as_bits(m) & ABS))
    return top


@entry
def write_momentum(gradient, memory, offsets, starts, share, out):
    """Compiled version of the reference; the gradient was checked, so that only the memory may be non-finite."""
    for s in range(len(offsets) - 1):
        byte = starts[s]
        for lo in range(offsets[s], offsets[s + 1], _BLOCK):
            hi = min(lo + _BLOCK, offsets[s + 1])
            target = out[byte : byte + (hi - lo + 7) // 8]
            if _move(memory[lo:hi], gradient[lo:hi], share) >= EXPONENT:
                if peak(gradient[lo:hi], None)[1] >= EXPONENT:
                    return s
            _pack_signs(memory[lo:hi], target)
            byte += len(target)
    return -1


@kernel
def _ternary_plane(gradient, memory, top, inverse, key, column, shift, target):
    for j in range(len(gradient)):
        v = value(gradient, memory, j)
        bits = as_bits(v)
        magnitude = as_float(np.uint32(bits & ABS))
        word = np.uint32(_word(key, column + j) >> _DRAW)
        limit = np.float32(np.float32(np.int32(word)) * _UNIT)
        sent = _ONE if np.float32(magnitude * inverse) > limit else np.uint32(0)
        minus = np.uint32(bits >> _SIGN)
        _merge(target, j, np.uint32(sent << minus), shift)
        level = top if sent else np.float32(0.0)
        keep(memory, j, np.float32(v - (-level if minus else level)))


@entry
def write_ternary(gradient, memory, offsets, starts, ids, tops, inverses, key, out):
    """Write codes 1 (+top) and 2 (-top) where |v| / top exceeds the random draw, else 0; memory = v - sent."""
    for s in range(len(tops)):
        byte, first, end = starts[s], offsets[s], offsets[s + 1]
        row = row_key(key, ids[s])
        for base in range(first, end, _BLOCK):
            size = (min(_BLOCK, end - base) + 3) // 4
            target = out[byte : byte + size]
            target[:] = np.uint8(0)
            for plane in range(4):
                lo, hi = base + plane * size, min(base + plane * size + size, end)
                if lo < hi:
                    kept = part_of(memory, lo, hi)
                    _ternary_plane(
                        gradient[lo:hi], kept, tops[s], inverses[s], row, lo - first, 2 * plane, target
                    )
            byte += size


@kernel
def levels_of(values, kept, inverse, step, maximum, key, target):
    """Quantize to signed int8 levels of one scale, with random rounding; with `kept`, values become the remainder."""
    for j in range(len(values)):
        v = values[j]
        bits = as_bits(v)
        magnitude = as_float(np.uint32(bits & ABS))
        fixed = np.uint32(min(np.int32(np.float32(magnitude * inverse)), maximum))
        word = np.uint32(_word(key, j) >> _DRAW)
        level = np.int32(np.uint32(np.uint32(fixed + word) >> np.uint32(24)))
        signed = np.int32(-level) if np.uint32(bits >> _SIGN) else level
        target[j] = np.int8(signed)
        if kept is not None:
            values[j] = np.float32(v - np.float32(np.float32(signed) * step))


@entry
def write_levels(gradient, memory, offsets, ids, inverses, steps, levels, key, out):
    """Signed level floor(|v| * inverse + draw), int8 [d]; inverses carry 24 fraction bits; memory = v - sent."""
    most = np.int32(levels << 24)
    for s in range(len(steps)):
        row = row_key(key, ids[s])
        for lo in range(offsets[s], offsets[s + 1], _BLOCK):
            hi = min(lo + _BLOCK, offsets[s + 1])
            here = np.uint32(row + np.uint32(np.uint32(lo - offsets[s]) * np.uint32(GOLDEN)))
            if memory is None:
                levels_of(gradient[lo:hi], None, inverses[s], steps[s], most, here, out[lo:hi])
            else:
                _add_to(memory[lo:hi], gradient[lo:hi])
                levels_of(memory[lo:hi], True, inverses[s], steps[s], most, here, out[lo:hi])


@kernel
def _add_signs(row, shift, low, high, out):
    for j in range(len(out)):
        bit = np.uint32(np.uint32(np.uint32(row[j]) >> np.uint32(shift)) & _ONE)
        out[j] = np.float32(out[j] + (high if bit else low))


@kernel
def _add_ternary(row, shift, top, out):
    for j in range(len(out)):
        code = np.uint32(np.uint32(row[j]) >> np.uint32(shift))
        sign = np.int32(np.uint32(code & _ONE)) - np.int32(np.uint32(np.uint32(code & _TWO) >> _ONE))
        out[j] = np.float32(out[j] + np.float32(np.float32(np.int32(sign)) * top))


@entry
def add_signs(rows, offsets, starts, lows, highs, out):
    """Write the sum over rows of the level (low or high) of each bit; lows and highs are [n, s]."""
    for s in range(lows.shape[1]):
        byte, end = starts[s], offsets[s + 1]
        for base in range(offsets[s], end, _BLOCK):
            size = (min(_BLOCK, end - base) + 7) // 8
            out[base : min(base + _BLOCK, end)] = np.float32(0.0)
            for r in range(len(rows)):
                for plane in range(8):
                    lo, hi = base + plane * size, min(base + plane * size + size, end)
                    if lo < hi:
                        _add_signs(rows[r, byte : byte + size], plane, lows[r, s], highs[r, s], out[lo:hi])
            byte += size


@entry
def add_ternary(rows, offsets, starts, tops, out):
    """Write the sum of 0, +top or -top; tops are [n, s]."""
    for s in range(tops.shape[1]):
        byte, end = starts[s], offsets[s + 1]
        for base in range(offsets[s], end, _BLOCK):
            size = (min(_BLOCK, end - base) + 3) // 4
            out[base : min(base + _BLOCK, end)] = np.float32(0.0)
            for r in range(len(rows)):
                for plane in range(4):
                    lo, hi = base + plane * size, min(base + plane * size + size, end)
                    if lo < hi:
                        _add_ternary(rows[r, byte : byte + size], 2 * plane, tops[r, s], out[lo:hi])
            byte += size


@kernel
def add_levels_of(row, step, out):
    """Add the levels of a row, times one step."""
    for j in range(len(out)):
        out[j] = np.float32(out[j] + np.float32(np.float32(row[j]) * step))


@entry
def add_levels(rows, offsets, steps, out):
    """Write the sum of signed level times step; rows are int8 [n, bytes], steps [n, s]."""
    for s in range(steps.shape[1]):
        for lo in range(offsets[s], offsets[s + 1], _BLOCK):
            hi = min(lo + _BLOCK, offsets[s + 1])
            out[lo:hi] = np.float32(0.0)
            for r in range(len(rows)):
                add_levels_of(rows[r, lo:hi], steps[r, s], out[lo:hi])
