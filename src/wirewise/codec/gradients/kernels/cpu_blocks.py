"""Numba kernels of blocks with a scale of their own."""

from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import overload

from wirewise.codec.gradients.kernels.cpu_codes import add_levels_of, levels_of
from wirewise.codec.gradients.kernels.cpu_values import EXPONENT, part_of, peak
from wirewise.codec.gradients.kernels.reference_blocks import SCALED
from wirewise.codec.kernels.words import entry, kernel
from wirewise.rng import GOLDEN, row_key

__all__ = ["add_blocks", "scan_blocks", "write_blocks"]


@entry
def scan_blocks(gradient, memory, offsets, found):
    """Largest |v| of each block; returns the first segment not finite, or -1."""
    block = 0
    for s in range(len(offsets) - 1):
        top = np.uint32(0)
        for lo in range(offsets[s], offsets[s + 1], SCALED):
            hi = min(lo + SCALED, offsets[s + 1])
            found[block], here = peak(gradient[lo:hi], part_of(memory, lo, hi))
            top = max(top, here)
            block += 1
        if top >= EXPONENT:
            return s
    return -1


def _key_at(key, row, column):
    """Key of the draws of a row from a column on, or None of None."""
    return None if key is None else row_key(key, row) + column * GOLDEN


# By type, like `part_of`.
@overload(_key_at, inline="always")
def _typed_key_at(key, row, column):
    if key == types.none:
        return lambda key, row, column: None
    return lambda key, row, column: np.uint32(
        row_key(key, row) + np.uint32(np.uint32(column) * np.uint32(GOLDEN))
    )


@kernel
def _pack_halves(codes, target):
    size = len(target)
    for j in range(len(codes) - size):
        low, high = np.int32(codes[j]) & np.int32(15), np.int32(codes[j + size])
        target[j] = np.uint8(np.uint32(low | np.int32(high << np.int32(4))))
    if len(codes) < 2 * size:
        target[size - 1] = np.uint8(codes[size - 1] & np.int8(15))


@entry
def write_blocks(gradient, memory, tables, inverses, steps, bits, key, out):
    """Signed codes of 8 or 4 bits; inverses carry 24 binary places; memory = v - sent."""
    offsets, starts, ids = tables
    most = np.int32(((1 << (bits - 1)) - 1) << 24)
    block, codes = 0, np.empty(SCALED, dtype=np.int8)
    for s in range(len(ids)):
        byte = starts[s]
        for lo in range(offsets[s], offsets[s + 1], SCALED):
            hi = min(lo + SCALED, offsets[s + 1])
            target = out[byte : byte + ((hi - lo) * bits + 7) // 8]
            part = target.view(np.int8) if bits == 8 else codes[: hi - lo]
            row, kept = _key_at(key, ids[s], lo - offsets[s]), part_of(memory, lo, hi)
            levels_of(gradient[lo:hi], kept, inverses[block], steps[block], most, row, part)
            if bits == 4:
                _pack_halves(part, target)
            byte += len(target)
            block += 1


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
