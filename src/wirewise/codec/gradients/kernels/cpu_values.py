"""Shared parts of the numba gradient kernels: v = gradient + memory, scans of segments, casts to 16 bits.

`memory` may be None: numba prunes the branches that test it. Reading v twice is cheaper than keeping it, and leaves
the memory as it was until all segments are known to be finite.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from wirewise.codec.kernels.words import as_bits, as_float, bfloat16, entry, inline, kernel
from wirewise.jit import njit

__all__ = [
    "ABS",
    "EXPONENT",
    "LARGEST",
    "cast",
    "copy_peak",
    "infinite",
    "keep",
    "limit",
    "part_of",
    "peak",
    "peak_of_parts",
    "scan",
    "scan_halves",
    "sum_into",
    "value",
    "widen_add",
]

ABS = np.uint32(0x7FFFFFFF)
EXPONENT = np.uint32(0x7F800000)
"""Least bits of |v| that represent infinity or NaN."""
_HALF_MAX = np.float32(65504.0)
LARGEST = np.float32(np.finfo(np.float32).max)
_STRETCH = 256

# Sums may be taken in any order, so that they are vectorised.
_reduction = njit(fastmath={"reassoc", "nsz"}, _nrt=False)


@kernel
def value(gradient, memory, i):
    if memory is None:
        return gradient[i]
    return np.float32(gradient[i] + memory[i])


@kernel
def keep(memory, i, rest):
    if memory is not None:
        memory[i] = rest


def part_of(memory, lo, hi):
    """Slice memory[lo:hi], or None of None."""
    return None if memory is None else memory[lo:hi]


# Inlined by type: a compiled function that returned the slice would have to count references.
@overload(part_of, inline="always")
def _part_of(memory, lo, hi):
    if memory == types.none:
        return lambda memory, lo, hi: None
    return lambda memory, lo, hi: memory[lo:hi]


@intrinsic
def _to_half(typingctx, number):
    """Bits of a float32 rounded to half precision: one instruction for eight or more."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _from_half(typingctx, raw):
    """The float32 of a half given by its bits."""

    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@_reduction
def peak(gradient, memory):
    """Largest |v|, and its bits."""
    top = np.uint32(0)
    for i in range(len(gradient)):
        top = max(top, np.uint32(as_bits(value(gradient, memory, i)) & ABS))
    return np.float64(as_float(top)), top


@kernel
def _peak_bits(gradient, memory):
    """Bits of `peak`, in short stretches: a tenth faster than one loop where all comes from memory."""
    top = np.uint32(0)
    for lo in range(0, len(gradient), _STRETCH):
        hi = min(lo + _STRETCH, len(gradient))
        if memory is None:
            top = max(top, peak(gradient[lo:hi], None)[1])
        else:
            top = max(top, peak(gradient[lo:hi], memory[lo:hi])[1])
    return top


@kernel
def limit(values, maximum):
    """Clip magnitudes to `maximum`, keeping NaN; returns the largest bits of |v| after clipping."""
    top = np.uint32(0)
    for i in range(len(values)):
        if abs(values[i]) > maximum:
            values[i] = np.float32(np.copysign(maximum, values[i]))
        top = max(top, np.uint32(as_bits(values[i]) & ABS))
    return top


@kernel
def infinite(gradient):
    """Largest bits of |v| if the gradient is not finite, else 0."""
    top = peak(gradient, None)[1]
    return top if top >= EXPONENT else np.uint32(0)


@kernel
def sum_into(memory, gradient, maximum):
    """Write v, clipped to `maximum`, to the memory; returns the largest bits of |v|, or of a non-finite gradient."""
    top = np.uint32(0)
    for j in range(len(memory)):
        v = np.float32(gradient[j] + memory[j])
        memory[j] = v
        top = max(top, np.uint32(as_bits(v) & ABS))
    return top if top <= as_bits(maximum) else max(limit(memory, maximum), infinite(gradient))


@entry
def copy_peak(source, target):
    """Copy bits of float32 numbers, uint32 [d]; returns the largest bits of |v|."""
    top = np.uint32(0)
    for i in range(len(target)):
        bits = source[i]
        target[i] = bits
        top = max(top, np.uint32(bits & ABS))
    return top


@entry
def peak_of_parts(values, parts):
    """Largest bits of |v| in parts, int64 [n, 2]."""
    top = np.uint32(0)
    for k in range(len(parts)):
        top = max(top, peak(values[parts[k, 0] : parts[k, 1]], None)[1])
    return top


@_reduction
def _sum(gradient, memory):
    total, top = 0.0, np.uint32(0)
    for i in range(len(gradient)):
        bits = np.uint32(as_bits(value(gradient, memory, i)) & ABS)
        top = max(top, bits)
        total += np.float64(as_float(bits))
    return total, top


@_reduction
def _squares(gradient, memory):
    total, top = 0.0, np.uint32(0)
    for i in range(len(gradient)):
        bits = np.uint32(as_bits(value(gradient, memory, i)) & ABS)
        top = max(top, bits)
        wide = np.float64(as_float(bits))
        total += wide * wide
    return total, top


@entry
def scan(gradient, memory, offsets, power, found):
    """Compute the largest |v| (power 0) or sum of |v|^power per segment; returns the first non-finite one, or -1."""
    for s in range(len(found)):
        lo, hi = offsets[s], offsets[s + 1]
        if power == 0:
            top = _peak_bits(gradient[lo:hi], part_of(memory, lo, hi))
            found[s] = as_float(top)
        elif power == 1:
            found[s], top = _sum(gradient[lo:hi], part_of(memory, lo, hi))
        else:
            found[s], top = _squares(gradient[lo:hi], part_of(memory, lo, hi))
        if top >= EXPONENT:
            return s
    return -1


@_reduction
def _halves(gradient, memory):
    low, high, minus, top = 0.0, 0.0, np.int32(0), np.uint32(0)
    for i in range(len(gradient)):
        v = value(gradient, memory, i)
        bits = as_bits(v)
        top = max(top, np.uint32(bits & ABS))
        minus += np.int32(np.uint32(bits >> np.uint32(31)))
        low += np.float64(min(v, np.float32(0.0)))
        high += np.float64(max(v, np.float32(0.0)))
    return low, high, minus, top


@entry
def scan_halves(gradient, memory, offsets, lows, highs):
    """Means of the v with and without sign bit, 0 if there are none; returns the first non-finite segment, or -1."""
    for s in range(len(lows)):
        lo, hi = offsets[s], offsets[s + 1]
        low, high, minus, top = _halves(gradient[lo:hi], part_of(memory, lo, hi))
        if top >= EXPONENT:
            return s
        lows[s] = np.float32(low / max(1, minus))
        highs[s] = np.float32(high / max(1, hi - lo - minus))
    return -1


@inline
def _cut(v):
    """A sum, at most float32's largest; NaN stays."""
    return np.float32(np.copysign(LARGEST, v)) if abs(v) > LARGEST else v


@kernel
def _suspect(gradient, memory):
    """Whether largest bits of infinity or NaN came of more than a sum that was cut, told by what the cast kept."""
    if memory is None:
        return True
    return infinite(gradient) > 0 or infinite(memory) > 0


@kernel
def _cast_half(gradient, memory, out):
    top = np.uint32(0)
    for i in range(len(gradient)):
        v = value(gradient, memory, i)
        top = max(top, np.uint32(as_bits(v) & ABS))
        raw = _to_half(min(max(v, -_HALF_MAX), _HALF_MAX))
        out[i] = raw
        keep(memory, i, np.float32(_cut(v) - _from_half(raw)))
    return top


@kernel
def _cast_bfloat(gradient, memory, out):
    top = np.uint32(0)
    for i in range(len(gradient)):
        v = value(gradient, memory, i)
        bits = as_bits(v)
        top = max(top, np.uint32(bits & ABS))
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        raw = np.uint32(np.uint32(bits + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))
        magnitude = min(np.uint32(raw & np.uint32(0x7FFF)), np.uint32(0x7F7F))
        sent = np.uint16(np.uint32(raw & np.uint32(0x8000)) | magnitude)
        out[i] = sent
        keep(memory, i, np.float32(_cut(v) - bfloat16(sent)))
    return top


@entry
def cast(gradient, memory, offsets, half, out):
    """Compiled version of the reference; also refuses a non-finite gradient that was declared checked."""
    for s in range(len(offsets) - 1):
        lo, hi = offsets[s], offsets[s + 1]
        if half:
            top = _cast_half(gradient[lo:hi], part_of(memory, lo, hi), out[lo:hi])
        else:
            top = _cast_bfloat(gradient[lo:hi], part_of(memory, lo, hi), out[lo:hi])
        if top >= EXPONENT and _suspect(gradient[lo:hi], part_of(memory, lo, hi)):
            return s
    return -1


@kernel
def _add_half(row, scale, out):
    for i in range(len(out)):
        out[i] = np.float32(out[i] + np.float32(_from_half(row[i]) * scale))


@kernel
def _add_bfloat(row, scale, out):
    for i in range(len(out)):
        out[i] = np.float32(out[i] + np.float32(bfloat16(row[i]) * scale))


@entry
def widen_add(rows, half, scale, block, out):
    """Write the scaled sum of rows of 16 bits, block by block so that sums stay in cache."""
    for lo in range(0, len(out), block):
        hi = min(lo + block, len(out))
        out[lo:hi] = np.float32(0.0)
        for r in range(len(rows)):
            if half:
                _add_half(rows[r, lo:hi], scale, out[lo:hi])
            else:
                _add_bfloat(rows[r, lo:hi], scale, out[lo:hi])
