"""Numba kernels that decode: into rows, added to rows, or directly into weighted sums of rows."""

from __future__ import annotations

import numpy as np

from wirewise.codec.kernels.words import as_float, bfloat16, copy_bytes, entry, kernel

__all__ = ["aggregate_rows", "unpack_rows"]


@kernel
def _decode1(part, shift, mask, zero, step, scale, out):
    """Decode one plane: codes at `shift` of each byte."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        value = np.float32(np.float32(np.float32(np.int32(code)) * step) + zero)
        out[j] = np.float32(value * scale)


@kernel
def _add1(part, shift, mask, zero, step, scale, out):
    """`_decode1`, added to `out`."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        value = np.float32(np.float32(np.float32(np.int32(code)) * step) + zero)
        out[j] = np.float32(out[j] + np.float32(value * scale))


@kernel
def _decode_row(part, bits, zero, step, scale, add, out):
    """Write (or add) one decoded row."""
    size, width = len(part), len(out)
    mask = np.uint32((1 << bits) - 1)
    for plane in range(8 // bits):
        lo, hi = plane * size, min((plane + 1) * size, width)
        if lo >= hi:
            break
        shift = np.uint32(plane * bits)
        if add:
            _add1(part, shift, mask, zero, step, scale, out[lo:hi])
        else:
            _decode1(part, shift, mask, zero, step, scale, out[lo:hi])


@kernel
def _widen(part, scratch):
    """Values of bfloat16 bytes as float32."""
    for c in range(len(scratch)):
        raw = np.uint32(np.uint32(part[2 * c]) | np.uint32(np.uint32(part[2 * c + 1]) << np.uint32(8)))
        scratch[c] = as_float(np.uint32(raw << np.uint32(16)))


@kernel
def _add_scaled(row, factor, add, out):
    """Write (or add) `factor` times a row."""
    if add:
        for c in range(len(out)):
            out[c] = np.float32(out[c] + np.float32(row[c] * factor))
    else:
        for c in range(len(out)):
            out[c] = np.float32(row[c] * factor)


@kernel
def _unpack_blocks(group, order, index, bits, zeros, steps, scale, add, out, lo, hi, scratch, scratch_bytes):
    """`unpack_rows` with its scratch row."""
    for i in range(lo, hi):
        target = index[order[i]] if len(index) else order[i]
        if bits < 16:
            _decode_row(group[i], bits, zeros[i], bfloat16(steps[i]), scale, add, out[target])
            continue
        if bits == 16:
            _widen(group[i], scratch)
        else:
            copy_bytes(group[i], scratch_bytes)
        _add_scaled(scratch, scale, add, out[target])


@entry
def unpack_rows(group, order, index, bits, zeros, steps, scale, add, out, lo, hi):
    """Decode rows lo..hi of a group into (or onto) the rows of `out`."""
    scratch = np.empty(out.shape[1], dtype=np.float32)
    _unpack_blocks(
        group, order, index, bits, zeros, steps, scale, add, out, lo, hi, scratch, scratch.view(np.uint8)
    )


@kernel
def _accumulate(part, shift, mask, factor, out):
    """Add `factor` times the codes of one plane."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        out[j] = np.float32(out[j] + np.float32(np.float32(np.int32(code)) * factor))


@kernel
def _accumulate_row(part, bits, factor, out):
    """Add `factor` times the codes of a row."""
    size, width = len(part), len(out)
    mask = np.uint32((1 << bits) - 1)
    for plane in range(8 // bits):
        first, last = plane * size, min((plane + 1) * size, width)
        if first < last:
            _accumulate(part, np.uint32(plane * bits), mask, factor, out[first:last])


@kernel
def _aggregate_blocks(
    buffer, bits, offset, slot, zeros, steps, indptr, indices, weight, out, lo, hi, scratch, scratch_bytes
):
    """`aggregate_rows` with its scratch row."""
    width = out.shape[1]
    for r in range(lo, hi):
        base = np.float32(0.0)
        for e in range(indptr[r], indptr[r + 1]):
            message = indices[e]
            b = np.int64(bits[message])
            part = buffer[offset[message] : offset[message] + (width * b + 7) // 8]
            if b < 16:
                place = slot[message]
                base = np.float32(base + np.float32(zeros[place] * weight[e]))
                _accumulate_row(part, b, np.float32(bfloat16(steps[place]) * weight[e]), out[r])
            elif b == 16:
                _widen(part, scratch)
                _add_scaled(scratch, weight[e], True, out[r])
            else:
                copy_bytes(part, scratch_bytes)
                _add_scaled(scratch, weight[e], True, out[r])
        target = out[r]
        for c in range(width):
            target[c] = np.float32(target[c] + base)


@entry
def aggregate_rows(buffer, bits, offset, slot, zeros, steps, indptr, indices, weight, out, lo, hi):
    """Add weighted sums of messages to rows lo..hi of `out`, directly from the codes."""
    scratch = np.empty(out.shape[1], dtype=np.float32)
    _aggregate_blocks(
        buffer,
        bits,
        offset,
        slot,
        zeros,
        steps,
        indptr,
        indices,
        weight,
        out,
        lo,
        hi,
        scratch,
        scratch.view(np.uint8),
    )
