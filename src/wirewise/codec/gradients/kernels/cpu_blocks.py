"""Numba kernels of blocks, each with its own scale."""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.cpu_codes import add_levels_of, levels_of
from wirewise.codec.gradients.kernels.cpu_values import EXPONENT, peak, sum_into
from wirewise.codec.gradients.kernels.reference_blocks import LEAST_STEP, MOST, SCALED
from wirewise.codec.kernels.words import as_bits, as_float, entry, inline, kernel
from wirewise.rng import GOLDEN, row_key

__all__ = ["add_blocks", "write_blocks"]

_LEAST, _MOST = np.float32(LEAST_STEP), np.float32(MOST)
_SIGN_BIT = np.uint32(1 << 31)
_UNDER_HALF = np.uint32(0x3EFFFFFF)
"""Bits of the largest float32 below one half."""
_PLACES, _UNIT = np.float32(2.0**24), np.float32(2.0**-24)
_UPPER, _ROUND_UP = np.uint32(0xFFFF0000), np.uint32(0xFFFF)


@inline
def _step(top, levels):
    """Largest magnitude / levels as the next bfloat16, at least one whose inverse is finite; 0 of 0."""
    if top == np.float32(0.0):
        return np.float32(0.0)
    ratio = max(np.float32(top / np.float32(levels)), _LEAST)
    return as_float(np.uint32(np.uint32(as_bits(ratio) + _ROUND_UP) & _UPPER))


@kernel
def _nearest(values, kept, inverse, step, target):
    """Signed levels to nearest, halves away from 0; with `kept` (True or None) values become what is left."""
    for j in range(len(values)):
        v = values[j]
        # Below one half by the least there is: the sum is rounded too, and must not lift what is under one half.
        half = as_float(np.uint32(np.uint32(as_bits(v) & _SIGN_BIT) | _UNDER_HALF))
        level = np.int32(np.float32(np.float32(v * inverse) + half))
        target[j] = np.int8(level)
        if kept is not None:
            values[j] = np.float32(v - np.float32(np.float32(level) * step))


@kernel
def _pack_halves(codes, target):
    size = len(target)
    low, high = codes[:size], codes[size:]
    for j in range(len(high)):
        lower = np.uint32(np.uint32(low[j]) & np.uint32(15))
        target[j] = np.uint8(np.uint32(lower | np.uint32(np.uint32(high[j]) << np.uint32(4))))
    if len(high) < size:
        target[size - 1] = np.uint8(low[size - 1] & np.int8(15))


@kernel
def _code(values, kept, step, levels, key, place, codes):
    """Codes of a block at a row and column; with `kept` (True or None) values become what is left."""
    inverse = np.float32(_PLACES / step) if step > np.float32(0.0) else np.float32(0.0)
    if key is None:
        _nearest(values, kept, np.float32(inverse * _UNIT), step, codes)
    else:
        row, column = place
        here = np.uint32(row_key(key, row) + np.uint32(np.uint32(column) * np.uint32(GOLDEN)))
        levels_of(values, kept, inverse, step, np.int32(levels << 24), here, codes)


@entry
def write_blocks(gradient, memory, tables, bits, key, out, steps):
    """Write signed codes of 8 or 4 bits and the step of each block; returns the first non-finite segment, or -1.

    The memory becomes v - sent. A block is read once: v overwrites its memory, and stays in cache while step and codes
    are computed.
    """
    offsets, starts, ids = tables
    levels, block, codes = (1 << (bits - 1)) - 1, 0, np.empty(SCALED, dtype=np.int8)
    for s in range(len(ids)):
        byte = starts[s]
        for lo in range(offsets[s], offsets[s + 1], SCALED):
            hi = min(lo + SCALED, offsets[s + 1])
            if memory is None:
                top = peak(gradient[lo:hi], None)[1]
            else:
                top = sum_into(memory[lo:hi], gradient[lo:hi], _MOST)
            if top >= EXPONENT:
                return s
            target = out[byte : byte + ((hi - lo) * bits + 7) // 8]
            part = target.view(np.int8) if bits == 8 else codes[: hi - lo]
            steps[block] = step = _step(as_float(top), levels)
            place = (ids[s], lo - offsets[s])
            if memory is None:
                _code(gradient[lo:hi], None, step, levels, key, place, part)
            else:
                _code(memory[lo:hi], True, step, levels, key, place, part)
            if bits == 4:
                _pack_halves(part, target)
            byte += len(target)
            block += 1
    return -1


@kernel
def _add_halves(row, step, out):
    size = len(row)
    for j in range(size):
        low = np.int32(np.int32(row[j]) << np.int32(28)) >> np.int32(28)
        out[j] = np.float32(out[j] + np.float32(np.float32(np.int32(low)) * step))
    for j in range(len(out) - size):
        high = np.int32(row[j]) >> np.int32(4)
        out[j + size] = np.float32(out[j + size] + np.float32(np.float32(np.int32(high)) * step))


@entry
def add_blocks(rows, offsets, starts, steps, bits, out):
    """Write the sum of signed code times step; rows are int8 [n, bytes], steps [n, blocks]."""
    block = 0
    for s in range(len(offsets) - 1):
        byte = starts[s]
        for lo in range(offsets[s], offsets[s + 1], SCALED):
            target = out[lo : min(lo + SCALED, offsets[s + 1])]
            end = byte + (len(target) * bits + 7) // 8
            target[:] = np.float32(0.0)
            for r in range(len(rows)):
                if bits == 8:
                    add_levels_of(rows[r, byte:end], steps[r, block], target)
                else:
                    _add_halves(rows[r, byte:end], steps[r, block], target)
            byte, block = end, block + 1
