"""The quantizer as numba kernels: one pass over a gathered row for its range, one that codes and packs it.

The kernels are written so that LLVM vectorises every inner loop:

- the range is found on the float bits as integers, which also exposes NaN and infinity at no cost;
- one 32-bit hash rounds two columns, and rounding is an integer addition and a shift;
- the planar byte layout turns packing into whole-vector shifts.

Rows are independent, so threads split them without changing a byte. Kernels release the GIL.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from wirewise.codec.kernels import threads
from wirewise.codec.layout import Group, MessageLayout
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["pack", "unpack", "unpack_add", "unpack_aggregate", "warm"]

_MIN_STEP = np.float32(2.0**-108)
_FIXED_ONE = np.float32(131072.0)
_HALF = np.uint32(1 << 16)


@numba.njit(inline="always")
def _float(bits):
    """The float32 with these bits (uint32)."""
    return np.uint32(bits).view(np.float32)


@numba.njit(inline="always")
def _bits(value):
    """The bits of a float32, as uint32."""
    return np.float32(value).view(np.uint32)


@numba.njit(inline="always")
def _step(raw):
    """The float32 of a bfloat16 given by its bits (uint16)."""
    return _float(np.uint32(np.uint32(raw) << np.uint32(16)))


@numba.njit(cache=True, nogil=True)
def _range(bits):
    """Smallest and largest value of a row, and whether all are finite, from float bits as uint32 [d].

    Bits of positive floats are ordered as integers, those of negative floats are ordered backwards above them.
    """
    low, high, top = np.int32(0x7FFFFFFF), np.int32(-0x80000000), np.uint32(0)
    for c in range(len(bits)):
        u = bits[c]
        s = np.int32(u)
        low = min(low, s)
        high = max(high, s)
        top = max(top, u)
    finite = high < np.int32(0x7F800000) and top < np.uint32(0xFF800000)
    smallest = np.uint32(top) if top >= np.uint32(0x80000000) else np.uint32(low)
    largest = np.uint32(high) if high >= 0 else np.uint32(low)
    return _float(smallest), _float(largest), finite


@numba.njit(cache=True, nogil=True)
def _parameters(low, high, levels, narrow):
    """Zero point, bits of the bfloat16 step, and 2^17 / step of a row with this range."""
    zero = np.float32(low + np.float32(0.0))
    if narrow:
        raw = _bits(zero)
        if raw >= np.uint32(0x80000000):
            raw = np.uint32(raw + np.uint32(0xFFFF))
        zero = _float(np.uint32(raw & np.uint32(0xFFFF0000)))
    spread = np.float32(high - zero)
    if not spread > np.float32(0.0):
        return zero, np.float32(0.0), np.float32(0.0)
    ratio = np.float32(spread / np.float32(levels))
    raw = np.uint32(np.uint32(_bits(ratio) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000))
    step = max(_float(raw), _MIN_STEP)
    return zero, step, np.float32(_FIXED_ONE / step)


@numba.njit(inline="always")
def _code(value, zero, scale, limit, noise):
    """Fixed-point code of one value plus noise of 17 bits, shifted back to an integer."""
    fixed = np.int32(np.float32(np.float32(value - zero) * scale))
    return np.uint32(np.uint32(np.uint32(min(fixed, limit)) + noise) >> np.uint32(17))


@numba.njit(inline="always")
def _low(word):
    return np.uint32((np.uint32(word << np.uint32(1)) & np.uint32(0x1FFFF)) | np.uint32(1))


@numba.njit(inline="always")
def _high(word):
    return np.uint32(np.uint32(word >> np.uint32(15)) | np.uint32(1))


@numba.njit(cache=True, nogil=True)
def _codes(left, right, zero, scale, limit, key, codes_left, codes_right):
    """Code the two halves of a row; column j of both halves shares one hash."""
    for j in range(len(right)):
        word = mix32(np.uint32(key + np.uint32(np.uint32(j) * np.uint32(GOLDEN))))
        codes_left[j] = np.uint8(_code(left[j], zero, scale, limit, _low(word)))
        codes_right[j] = np.uint8(_code(right[j], zero, scale, limit, _high(word)))
    for j in range(len(right), len(left)):
        word = mix32(np.uint32(key + np.uint32(np.uint32(j) * np.uint32(GOLDEN))))
        codes_left[j] = np.uint8(_code(left[j], zero, scale, limit, _low(word)))


@numba.njit(cache=True, nogil=True)
def _codes_nearest(row, zero, scale, limit, codes):
    """Code a row to the nearest level."""
    for c in range(len(row)):
        codes[c] = np.uint8(_code(row[c], zero, scale, limit, _HALF))


@numba.njit(cache=True, nogil=True)
def _nibbles(left, right, zero, scale, limit, key, target):
    """`_codes` for 4 bits, whose two planes are the two halves: packs without a detour."""
    for j in range(len(right)):
        word = mix32(np.uint32(key + np.uint32(np.uint32(j) * np.uint32(GOLDEN))))
        a = _code(left[j], zero, scale, limit, _low(word))
        b = _code(right[j], zero, scale, limit, _high(word))
        target[j] = np.uint8(a | np.uint32(b << np.uint32(4)))
    for j in range(len(right), len(left)):
        word = mix32(np.uint32(key + np.uint32(np.uint32(j) * np.uint32(GOLDEN))))
        target[j] = np.uint8(_code(left[j], zero, scale, limit, _low(word)))


@numba.njit(cache=True, nogil=True)
def _planes2(a, b, target):
    for j in range(len(target)):
        target[j] = np.uint8(a[j] | np.uint8(b[j] << np.uint8(4)))


@numba.njit(cache=True, nogil=True)
def _planes4(a, b, c, d, target):
    for j in range(len(target)):
        low = np.uint8(a[j] | np.uint8(b[j] << np.uint8(2)))
        target[j] = np.uint8(low | np.uint8(np.uint8(c[j] << np.uint8(4)) | np.uint8(d[j] << np.uint8(6))))


@numba.njit(cache=True, nogil=True)
def _planes8(codes, size, target):
    target[:] = codes[:size]
    for plane in range(1, 8):
        part = codes[plane * size : (plane + 1) * size]
        for j in range(len(target)):
            target[j] = np.uint8(target[j] | np.uint8(part[j] << np.uint8(plane)))


@numba.njit(cache=True, nogil=True)
def _pack_row(row, zero, scale, key, bits, stochastic, codes, target):
    """Code one row and pack it into `target`; `codes` is scratch that is zero beyond the row."""
    width = len(row)
    half = (width + 1) // 2
    limit = np.int32(((1 << bits) - 1) << 17)
    if stochastic and bits == 4:
        _nibbles(row[:half], row[half:], zero, scale, limit, key, target)
        return
    if bits == 8:
        codes = target
    if stochastic:
        _codes(row[:half], row[half:], zero, scale, limit, key, codes[:half], codes[half:width])
    else:
        _codes_nearest(row, zero, scale, limit, codes[:width])
    size = len(target)
    if bits == 4:
        _planes2(codes[:size], codes[size : 2 * size], target)
    elif bits == 2:
        a, b = codes[:size], codes[size : 2 * size]
        c, d = codes[2 * size : 3 * size], codes[3 * size : 4 * size]
        _planes4(a, b, c, d, target)
    elif bits == 1:
        _planes8(codes, size, target)


@numba.njit(cache=True, nogil=True)
def _pack_rows(
    x, x_bits, index, order, rows, key, bits, narrow, stochastic, out, zeros, steps, ranges, lo, hi
):
    """Pack rows lo..hi of a group; returns the first message that cannot be coded, or -1."""
    levels = (1 << bits) - 1
    codes = np.zeros(8 * out.shape[1], dtype=np.uint8)
    traced = len(ranges) > 0
    for i in range(lo, hi):
        message = order[i]
        source = index[message] if len(index) else message
        low, high, finite = _range(x_bits[source])
        zero, step, scale = _parameters(low, high, levels, narrow)
        top = np.float32(zero + np.float32(np.float32(levels) * step))
        if not finite or not np.isfinite(top):
            return message
        zeros[i] = zero
        steps[i] = np.uint16(_bits(step) >> np.uint32(16))
        if traced:
            ranges[message] = np.float32(high - np.float32(low + np.float32(0.0)))
        _pack_row(x[source], zero, scale, row_key(key, rows[message]), bits, stochastic, codes, out[i])
    return -1


@numba.njit(cache=True, nogil=True)
def _round_bf16(bits, target):
    """bfloat16 of float bits, to nearest even; overflow stays at the largest finite value."""
    for c in range(len(bits)):
        u = bits[c]
        odd = np.uint32(np.uint32(u >> np.uint32(16)) & np.uint32(1))
        r = np.uint32(np.uint32(u + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))
        top = min(np.uint32(r & np.uint32(0x7FFF)), np.uint32(0x7F7F))
        target[c] = np.uint16(np.uint32(r & np.uint32(0x8000)) | top)


@numba.njit(cache=True, nogil=True)
def _copy_bytes(source, target):
    for j in range(len(target)):
        target[j] = source[j]


@numba.njit(cache=True, nogil=True)
def _pack_wide(x_bits, x_bytes, index, order, out, ranges, lo, hi):
    """Copy rows lo..hi of a group of 16 or 32 bits; returns the first message that is not finite, or -1."""
    scratch = np.empty(x_bits.shape[1], dtype=np.uint16)
    scratch_bytes = scratch.view(np.uint8)
    traced = len(ranges) > 0
    for i in range(lo, hi):
        message = order[i]
        source = index[message] if len(index) else message
        low, high, finite = _range(x_bits[source])
        if not finite:
            return message
        if traced:
            ranges[message] = np.float32(high - low)
        if out.shape[1] == x_bytes.shape[1]:
            _copy_bytes(x_bytes[source], out[i])
        else:
            _round_bf16(x_bits[source], scratch)
            _copy_bytes(scratch_bytes, out[i])
    return -1


@numba.njit(cache=True, nogil=True)
def _decode1(part, shift, mask, zero, step, scale, out):
    """Decode one plane: codes at `shift` of each byte."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        value = np.float32(np.float32(np.float32(np.int32(code)) * step) + zero)
        out[j] = np.float32(value * scale)


@numba.njit(cache=True, nogil=True)
def _add1(part, shift, mask, zero, step, scale, out):
    """`_decode1`, added to `out`."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        value = np.float32(np.float32(np.float32(np.int32(code)) * step) + zero)
        out[j] = np.float32(out[j] + np.float32(value * scale))


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _widen(part, out_bytes, scratch, scratch_bytes, scale, add, out):
    """Write (or add) one row of 16 or 32 bits."""
    if len(part) == 4 * len(out):
        if not add and scale == np.float32(1.0):
            _copy_bytes(part, out_bytes)
            return
        _copy_bytes(part, scratch_bytes)
    else:
        for c in range(len(out)):
            raw = np.uint32(np.uint32(part[2 * c]) | np.uint32(np.uint32(part[2 * c + 1]) << np.uint32(8)))
            scratch[c] = _step(raw)
    for c in range(len(out)):
        value = np.float32(scratch[c] * scale)
        out[c] = np.float32(out[c] + value) if add else value


@numba.njit(cache=True, nogil=True)
def _unpack_rows(group, order, index, bits, zeros, steps, scale, add, out, out_bytes, lo, hi):
    """Decode rows lo..hi of a group into (or onto) the rows of `out`."""
    scratch = np.empty(out.shape[1], dtype=np.float32)
    scratch_bytes = scratch.view(np.uint8)
    for i in range(lo, hi):
        target = index[order[i]] if len(index) else order[i]
        if bits < 16:
            step = _step(steps[i])
            _decode_row(group[i], bits, zeros[i], step, scale, add, out[target])
        else:
            _widen(group[i], out_bytes[target], scratch, scratch_bytes, scale, add, out[target])


@numba.njit(cache=True, nogil=True)
def _accumulate(part, shift, mask, factor, out):
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        out[j] = np.float32(out[j] + np.float32(np.float32(np.int32(code)) * factor))


@numba.njit(cache=True, nogil=True)
def _aggregate_rows(buffer, bits, offset, slot, zeros, steps, indptr, indices, weight, out, lo, hi):
    """Add weighted sums of messages to rows lo..hi of `out`, straight from the codes."""
    width = out.shape[1]
    scratch = np.empty(width, dtype=np.float32)
    scratch_bytes = scratch.view(np.uint8)
    for r in range(lo, hi):
        target = out[r]
        base = np.float32(0.0)
        for e in range(indptr[r], indptr[r + 1]):
            message = indices[e]
            b = np.int64(bits[message])
            size = (width * b + 7) // 8
            part = buffer[offset[message] : offset[message] + size]
            if b >= 16:
                _widen(part, scratch_bytes, scratch, scratch_bytes, np.float32(1.0), False, scratch)
                for c in range(width):
                    target[c] = np.float32(target[c] + np.float32(scratch[c] * weight[e]))
                continue
            place = slot[message]
            base = np.float32(base + np.float32(zeros[place] * weight[e]))
            step = _step(steps[place])
            factor = np.float32(step * weight[e])
            mask = np.uint32((1 << b) - 1)
            for plane in range(8 // b):
                first, last = plane * size, min((plane + 1) * size, width)
                if first < last:
                    _accumulate(part, np.uint32(plane * b), mask, factor, target[first:last])
        for c in range(width):
            target[c] = np.float32(target[c] + base)


_NO_INDEX = np.empty(0, dtype=np.int64)
_NO_RANGES = np.empty(0, dtype=np.float32)


def _index(index: Tensor | None) -> np.ndarray:
    return _NO_INDEX if index is None else index.numpy()


def _rows_of(buffer: np.ndarray, group: Group) -> np.ndarray:
    part = buffer[group.offset : group.offset + group.size_bytes]
    return part.reshape(len(group.order), group.row_bytes)


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
    source, target = x.detach().numpy(), out.numpy()
    words, spans = source.view(np.uint32), _NO_RANGES if ranges is None else ranges.numpy()
    zeros = np.empty(layout.num_quantized, dtype=np.float32)
    steps = np.empty(layout.num_quantized, dtype=np.uint16)
    bad: list[int] = []
    for group in layout.groups:
        block, chosen, order = _rows_of(target, group), _index(index), group.order
        if group.bits >= 16:
            arguments = (words, source.view(np.uint8), chosen, order, block, spans)
            bad += threads.split(_pack_wide, arguments, len(order), 4 * layout.width)
            continue
        place = slice(group.first_param, group.first_param + len(order))
        narrow = layout.param_bytes == 4
        arguments = (
            source,
            words,
            chosen,
            order,
            rows.numpy(),
            np.uint32(key),
            group.bits,
            narrow,
            stochastic,
            block,
            zeros[place],
            steps[place],
            spans,
        )
        bad += threads.split(_pack_rows, arguments, len(order), 4 * layout.width)
    _write_parameters(layout, target, zeros, steps)
    return min((message for message in bad if message >= 0), default=-1)


def _write_parameters(
    layout: MessageLayout, target: np.ndarray, zeros: np.ndarray, steps: np.ndarray
) -> None:
    if layout.param_bytes == 4:
        zeros = (zeros.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    target[layout.zeros_offset : layout.steps_offset] = zeros.view(np.uint8)
    target[layout.steps_offset : layout.size_bytes] = steps.view(np.uint8)


def _read_parameters(layout: MessageLayout, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Aligned copies of the zero points (float32) and steps (bfloat16 bits as uint16)."""
    zeros = buffer[layout.zeros_offset : layout.steps_offset].copy()
    steps = buffer[layout.steps_offset : layout.size_bytes].copy().view(np.uint16)
    if layout.param_bytes == 6:
        return zeros.view(np.float32), steps
    return (zeros.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32), steps


def unpack(buffer: Tensor, layout: MessageLayout, out: Tensor, scale: float) -> None:
    """Write `scale` times each decoded row."""
    _unpack(buffer, layout, None, out, scale, add=False)


def unpack_add(buffer: Tensor, layout: MessageLayout, index: Tensor, out: Tensor, scale: float) -> None:
    """Add `scale` times decoded row i to `out[index[i]]`."""
    _unpack(buffer, layout, index, out, scale, add=True)


def _unpack(
    buffer: Tensor, layout: MessageLayout, index: Tensor | None, out: Tensor, scale: float, *, add: bool
) -> None:
    source, target = buffer.numpy(), out.detach().numpy()
    zeros, steps = _read_parameters(layout, source)
    for group in layout.groups:
        place = slice(group.first_param, group.first_param + len(group.order))
        arguments = (
            _rows_of(source, group),
            group.order,
            _index(index),
            group.bits,
            zeros[place],
            steps[place],
            np.float32(scale),
            add,
            target,
            target.view(np.uint8),
        )
        # Two messages may go to one row, so additions are not split over threads.
        threads.split(_unpack_rows, arguments, len(group.order), 4 * layout.width, serial=add)


def unpack_aggregate(
    buffer: Tensor, layout: MessageLayout, indptr: Tensor, indices: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Add to `out[r]` the weighted sum of the messages of row r of a CSR matrix."""
    source = buffer.numpy()
    zeros, steps = _read_parameters(layout, source)
    tables = (layout.bits, layout.row_offset, layout.param_slot)
    arguments = (
        source,
        *tables,
        zeros,
        steps,
        indptr.numpy(),
        indices.numpy(),
        weight.detach().numpy(),
        out.detach().numpy(),
    )
    per_row = 4 * layout.width * max(1, len(indices) // max(1, len(out)))
    threads.split(_aggregate_rows, arguments, len(out), per_row)


def warm() -> None:
    """Compile every kernel for the argument types that occur; numba keeps the code on disk."""
    from wirewise.codec.layout import BITS

    layout = MessageLayout(BITS, 4)
    out = torch.empty(layout.size_bytes, dtype=torch.uint8)
    x, rows = torch.zeros(len(layout), 4), torch.arange(len(layout))
    for index in (None, rows, rows.to(torch.int32)):
        pack(x, index, layout, out, 1, rows, True, torch.empty(len(layout)))
    unpack(out, layout, x, 1.0)
    for index in (rows, rows.to(torch.int32)):
        unpack_add(out, layout, index, x, 1.0)
        indptr = torch.arange(len(layout) + 1)
        unpack_aggregate(out, layout, indptr, index, torch.ones(len(layout)), x)
