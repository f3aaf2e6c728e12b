"""Numba kernels of deep gradient compression: momentum and residual in one pass, elements above a sampled threshold."""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.cpu_select import BINS, choose, collect, threshold
from wirewise.codec.gradients.kernels.cpu_values import ABS, EXPONENT, limit, part_of
from wirewise.codec.gradients.kernels.pieces import BLOCK
from wirewise.codec.gradients.kernels.reference_select import TRIES
from wirewise.codec.kernels.words import as_bits, entry, inline, kernel
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["above"]

_MOST = np.float32(np.finfo(np.float32).max)


@kernel
def _move(rest, gradient, momentum, share):
    """Momentum u = share * u + gradient, residual w = w + u; then both at most float32's largest."""
    top = np.uint32(0)
    for i in range(len(rest)):
        u = np.float32(np.float32(momentum[i] * share) + gradient[i])
        w = np.float32(rest[i] + u)
        momentum[i], rest[i] = u, w
        top = max(top, np.uint32(as_bits(u) & ABS), np.uint32(as_bits(w) & ABS))
    if top >= EXPONENT:
        limit(momentum, _MOST)
        limit(rest, _MOST)


@inline
def _moved(rest, gradient, momentum, share, i):
    """What `_move` will make of a residual."""
    w = np.float32(rest[i] + np.float32(np.float32(momentum[i] * share) + gradient[i]))
    return np.float32(np.copysign(_MOST, w)) if abs(w) > _MOST else w


@kernel
def _sample(values, gradient, momentum, share, row, drawn):
    """Bits of the magnitudes of elements that are drawn; with a gradient, as they will be."""
    size = np.uint64(len(values))
    for i in range(len(drawn)):
        word = mix32(np.uint32(row + np.uint32(np.uint32(i) * np.uint32(GOLDEN))))
        place = np.int64(np.uint64(np.uint64(word) * size) >> np.uint64(32))
        if gradient is None:
            v = values[place]
        else:
            v = _moved(values, gradient, momentum, share, place)
        drawn[i] = np.uint32(as_bits(v) & ABS)


@kernel
def _collect_moved(values, gradient, momentum, share, edge, places, found):
    """`collect` of what `_move` makes of each block, while it is in cache."""
    count, top = 0, np.uint32(0)
    for lo in range(0, len(values), BLOCK):
        hi = min(lo + BLOCK, len(values))
        _move(values[lo:hi], gradient[lo:hi], momentum[lo:hi], share)
        more, here = collect(values[lo:hi], None, edge, places[count:], found[count:])
        for i in range(count, count + more):
            places[i] += np.int32(lo)
        count, top = count + more, max(top, here)
    return count, top


@kernel
def _narrow(places, found, count, edge):
    """Keep those from the edge on; their number."""
    kept = 0
    for i in range(count):
        places[kept], found[kept] = places[i], found[i]
        kept += 1 if found[i] >= edge else 0
    return kept


@kernel
def _search(values, gradient, momentum, share, drawn, bounds, places, found, counts):
    """Places of the elements above a threshold that the bounds allow; their number or -1, and the largest bits.

    With a gradient, values are moved before.
    """
    wanted, least, most, aim = bounds
    edge, _ = threshold(drawn, aim, counts)
    if gradient is None:
        count, top = collect(values, None, edge, places, found)
    else:
        count, top = _collect_moved(values, gradient, momentum, share, edge, places, found)
    for _ in range(TRIES):
        if least <= count <= most:
            return count, top
        before, aim = aim, min(len(drawn), (2 * aim * wanted + count) // (2 * count))
        if aim == 0 or aim == before:
            return -1, top
        edge, _ = threshold(drawn, aim, counts)
        if aim < before:
            count = _narrow(places, found, count, edge)
        else:
            count, top = collect(values, None, edge, places, found)
    return (count if least <= count <= most else -1), top


@kernel
def _write(values, places, count, first, indices, target):
    for i in range(count):
        indices[i] = places[i] + first
        target[i] = values[places[i]]
    indices[count:] = np.int32(first)
    target[count:] = np.float32(0.0)


@kernel
def _clear(buffer, indices):
    for i in range(len(indices)):
        buffer[indices[i]] = np.float32(0.0)


@entry
def above(values, gradient, momentum, share, memory, offsets, ids, bounds, key, indices, target, numbers):
    """As in the reference; bounds are its tables, int64 [5, s]; first segment not finite, or -1.

    With a gradient, values are the residual, and it and the momentum are moved before: as `accumulate_above`.
    """
    wanted, least, most, samples, aims = bounds
    size = 0
    for s in range(len(ids)):
        size = max(size, offsets[s + 1] - offsets[s])
    # One more: elements are written before it is known whether they are kept.
    places, found = np.empty(size + 1, dtype=np.int32), np.empty(size + 1, dtype=np.uint32)
    counts, drawn, at = np.empty(BINS, dtype=np.int32), np.empty(max(samples), dtype=np.uint32), 0
    for s in range(len(ids)):
        lo, hi, end = offsets[s], offsets[s + 1], at + most[s]
        part, new, old = values[lo:hi], part_of(gradient, lo, hi), part_of(momentum, lo, hi)
        count, top = -1, np.uint32(0)
        if samples[s]:
            _sample(part, new, old, share, row_key(key, ids[s]), drawn[: samples[s]])
            limits = (wanted[s], least[s], most[s], aims[s])
            count, top = _search(part, new, old, share, drawn[: samples[s]], limits, places, found, counts)
        elif gradient is not None:
            _move(part, new, old, share)
        if count < 0:
            count = wanted[s]
            own = slice(at, at + count)
            top = choose(part, None, count, places, found, counts, indices[own], target[own], lo)
            indices[at + count : end] = np.int32(lo)
            target[at + count : end] = np.float32(0.0)
        else:
            _write(part, places, count, lo, indices[at:end], target[at:end])
        if top >= EXPONENT:
            return s
        if memory is not None:
            for buffer in memory:
                _clear(buffer, indices[at : at + count])
        numbers[s], at = count, end
    return -1
