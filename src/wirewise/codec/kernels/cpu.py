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
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from wirewise.codec.kernels import threads
from wirewise.codec.layout import Group, MessageLayout
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["pack", "unpack", "unpack_add", "unpack_aggregate", "warm"]

# Without numba's reference counts, of which a row would pay a dozen atomic updates; such kernels cannot allocate.
_kernel = numba.njit(cache=True, nogil=True, _nrt=False)
_inline = numba.njit(inline="always", _nrt=False)
_entry = numba.njit(cache=True, nogil=True)

_MIN_STEP = np.float32(2.0**-108)
_FIXED_ONE = np.float32(131072.0)
_LINE = 64
_BLOCK_BYTES = 1 << 13
_BLOCK_ROWS = 64
_HALF = np.uint32(1 << 16)


@intrinsic
def _prefetch_line(typingctx, array, offset):
    """Ask for the cache line at a byte offset from the start of an array; never faults."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(builder.bitcast(view.data, ir.IntType(8).as_pointer()), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *(ir.IntType(32) for _ in range(3))])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@_inline
def _prefetch(array, row, row_size):
    """Ask for one row of a matrix: the hardware does not guess where the next gathered row lies."""
    for start in range(row * row_size, (row + 1) * row_size, _LINE):
        _prefetch_line(array, start)


@_inline
def _float(bits):
    """The float32 with these bits (uint32)."""
    return np.uint32(bits).view(np.float32)


@_inline
def _bits(value):
    """The bits of a float32, as uint32."""
    return np.float32(value).view(np.uint32)


@_inline
def _step(raw):
    """The float32 of a bfloat16 given by its bits (uint16)."""
    return _float(np.uint32(np.uint32(raw) << np.uint32(16)))


@_kernel
def _copy_bytes(source, target):
    for j in range(len(target)):
        target[j] = source[j]


@_kernel
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


@_kernel
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


@_inline
def _scan(x_bits, index, order, start, stop, levels, narrow, sources, zeros, steps, scales, ranges):
    """Find source row, zero point, step and 2^17 / step of rows start..stop; returns the first bad message or -1."""
    traced = len(ranges) > 0
    for i in range(start, stop):
        message = order[i]
        source = index[message] if len(index) else message
        low, high, finite = _range(x_bits[source])
        zero, step, scale = _parameters(low, high, levels, narrow)
        top = np.float32(zero + np.float32(np.float32(levels) * step))
        if not finite or not np.isfinite(top):
            return message
        sources[i - start] = source
        zeros[i] = zero
        steps[i] = np.uint16(_bits(step) >> np.uint32(16))
        scales[i - start] = scale
        if traced:
            ranges[message] = np.float32(high - np.float32(low + np.float32(0.0)))
    return -1


@_inline
def _fixed(value, zero, scale):
    """(value - zero) / step with 17 binary places, rounded down."""
    return np.uint32(np.int32(np.float32(np.float32(value - zero) * scale)))


@_inline
def _low(word):
    """2r + 1 for the 16 random bits of the left column."""
    return np.uint32(np.uint32(np.uint32(word << np.uint32(1)) & np.uint32(0x1FFFF)) | np.uint32(1))


@_inline
def _high(word):
    """2r + 1 for the 16 random bits of the right column."""
    return np.uint32(np.uint32(word >> np.uint32(15)) | np.uint32(1))


@_inline
def _add(a, b):
    return np.uint32(np.uint32(a) + np.uint32(b))


@_kernel
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


@_inline
def _byte(value, zero, scale, limit, noise):
    """Code of one value; clamped, because at 8 bits rounding can lift the largest above the last code."""
    fixed = min(np.int32(_fixed(value, zero, scale)), limit)
    return np.uint8(_add(np.uint32(fixed), noise) >> np.uint32(17))


@_kernel
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


@_kernel
def _code_nearest(row, zero, scale, limit, codes):
    """Code a row to the nearest level, one byte a code."""
    for c in range(len(row)):
        codes[c] = _byte(row[c], zero, scale, limit, _HALF)


@_kernel
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


@_inline
def _pack_block(
    x, rows, order, key, bits, stochastic, sources, ahead, zeros, scales, codes, out, start, stop
):
    """Code and pack rows start..stop, whose parameters are known."""
    width = x.shape[1]
    half = (width + 1) // 2
    limit = np.int32(((1 << bits) - 1) << 17)
    for i in range(start, stop):
        _prefetch(x, ahead[i - start], 4 * width)
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
            _copy_bytes(codes[:width], out[i])
        else:
            _merge(codes, out[i], bits)


@_kernel
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
    """`_pack_rows` with its scratch memory: ranges of a block of rows first, then codes, while the next is fetched."""
    block, width = len(sources), x.shape[1]
    levels = (1 << bits) - 1
    for start in range(lo, hi, block):
        stop = min(start + block, hi)
        bad = _scan(x_bits, index, order, start, stop, levels, narrow, sources, zeros, steps, scales, ranges)
        if bad >= 0:
            return bad
        for i in range(stop, min(stop + block, hi)):
            ahead[i - stop] = index[order[i]] if len(index) else order[i]
        _pack_block(
            x, rows, order, key, bits, stochastic, sources, ahead, zeros, scales, codes, out, start, stop
        )
    return -1


@_entry
def _pack_rows(
    x, x_bits, index, order, rows, key, bits, narrow, stochastic, out, zeros, steps, ranges, lo, hi
):
    """Pack rows lo..hi of a group; returns the first message that cannot be coded, or -1."""
    block = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * x.shape[1])))
    sources, ahead = np.empty(block, dtype=np.int64), np.zeros(block, dtype=np.int64)
    scales = np.empty(block, dtype=np.float32)
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


@_kernel
def _round_bf16(bits, target):
    """bfloat16 of float bits, to nearest even; overflow stays at the largest finite value."""
    for c in range(len(bits)):
        u = bits[c]
        odd = np.uint32(np.uint32(u >> np.uint32(16)) & np.uint32(1))
        r = np.uint32(np.uint32(u + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))
        top = min(np.uint32(r & np.uint32(0x7FFF)), np.uint32(0x7F7F))
        target[c] = np.uint16(np.uint32(r & np.uint32(0x8000)) | top)


@_kernel
def _pack_wide_rows(x_bits, x_bytes, index, order, out, ranges, lo, hi, scratch, scratch_bytes):
    """`_pack_wide` with its scratch row."""
    traced = len(ranges) > 0
    for i in range(lo, hi):
        message = order[i]
        source = index[message] if len(index) else message
        if i + 2 < hi:
            later = order[i + 2]
            _prefetch(x_bytes, index[later] if len(index) else later, x_bytes.shape[1])
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


@_entry
def _pack_wide(x_bits, x_bytes, index, order, out, ranges, lo, hi):
    """Copy rows lo..hi of a group of 16 or 32 bits; returns the first message that is not finite, or -1."""
    scratch = np.empty(x_bits.shape[1], dtype=np.uint16)
    return _pack_wide_rows(
        x_bits, x_bytes, index, order, out, ranges, lo, hi, scratch, scratch.view(np.uint8)
    )


@_kernel
def _decode1(part, shift, mask, zero, step, scale, out):
    """Decode one plane: codes at `shift` of each byte."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        value = np.float32(np.float32(np.float32(np.int32(code)) * step) + zero)
        out[j] = np.float32(value * scale)


@_kernel
def _add1(part, shift, mask, zero, step, scale, out):
    """`_decode1`, added to `out`."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        value = np.float32(np.float32(np.float32(np.int32(code)) * step) + zero)
        out[j] = np.float32(out[j] + np.float32(value * scale))


@_kernel
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


@_kernel
def _widen(part, scratch):
    """bfloat16 bytes as float32."""
    for c in range(len(scratch)):
        raw = np.uint32(np.uint32(part[2 * c]) | np.uint32(np.uint32(part[2 * c + 1]) << np.uint32(8)))
        scratch[c] = _float(np.uint32(raw << np.uint32(16)))


@_kernel
def _add_scaled(row, factor, add, out):
    """Write (or add) `factor` times a row."""
    if add:
        for c in range(len(out)):
            out[c] = np.float32(out[c] + np.float32(row[c] * factor))
    else:
        for c in range(len(out)):
            out[c] = np.float32(row[c] * factor)


@_kernel
def _unpack_blocks(group, order, index, bits, zeros, steps, scale, add, out, lo, hi, scratch, scratch_bytes):
    """`_unpack_rows` with its scratch row."""
    for i in range(lo, hi):
        target = index[order[i]] if len(index) else order[i]
        if bits < 16:
            _decode_row(group[i], bits, zeros[i], _step(steps[i]), scale, add, out[target])
            continue
        if bits == 16:
            _widen(group[i], scratch)
        else:
            _copy_bytes(group[i], scratch_bytes)
        _add_scaled(scratch, scale, add, out[target])


@_entry
def _unpack_rows(group, order, index, bits, zeros, steps, scale, add, out, lo, hi):
    """Decode rows lo..hi of a group into (or onto) the rows of `out`."""
    scratch = np.empty(out.shape[1], dtype=np.float32)
    _unpack_blocks(
        group, order, index, bits, zeros, steps, scale, add, out, lo, hi, scratch, scratch.view(np.uint8)
    )


@_kernel
def _accumulate(part, shift, mask, factor, out):
    """Add `factor` times the codes of one plane."""
    for j in range(len(out)):
        code = np.uint32(np.uint32(np.uint32(part[j]) >> shift) & mask)
        out[j] = np.float32(out[j] + np.float32(np.float32(np.int32(code)) * factor))


@_kernel
def _accumulate_row(part, bits, factor, out):
    """Add `factor` times the codes of a row."""
    size, width = len(part), len(out)
    mask = np.uint32((1 << bits) - 1)
    for plane in range(8 // bits):
        first, last = plane * size, min((plane + 1) * size, width)
        if first < last:
            _accumulate(part, np.uint32(plane * bits), mask, factor, out[first:last])


@_kernel
def _aggregate_blocks(
    buffer, bits, offset, slot, zeros, steps, indptr, indices, weight, out, lo, hi, scratch, scratch_bytes
):
    """`_aggregate_rows` with its scratch row."""
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
                _accumulate_row(part, b, np.float32(_step(steps[place]) * weight[e]), out[r])
            elif b == 16:
                _widen(part, scratch)
                _add_scaled(scratch, weight[e], True, out[r])
            else:
                _copy_bytes(part, scratch_bytes)
                _add_scaled(scratch, weight[e], True, out[r])
        target = out[r]
        for c in range(width):
            target[c] = np.float32(target[c] + base)


@_entry
def _aggregate_rows(buffer, bits, offset, slot, zeros, steps, indptr, indices, weight, out, lo, hi):
    """Add weighted sums of messages to rows lo..hi of `out`, straight from the codes."""
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
