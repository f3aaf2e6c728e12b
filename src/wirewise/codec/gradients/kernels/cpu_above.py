"""Numba kernels of deep gradient compression: momentum and residual in one pass, elements above a sampled threshold."""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.cpu_select import BINS, choose, collect, threshold
from wirewise.codec.gradients.kernels.cpu_values import ABS, EXPONENT
from wirewise.codec.gradients.kernels.reference_select import TRIES
from wirewise.codec.kernels.words import as_bits, entry, kernel
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["above", "compensate"]

_MOST = np.float32(np.finfo(np.float32).max)


@kernel
def _limit(values):
    for i in range(len(values)):
        values[i] = min(max(values[i], -_MOST), _MOST)


@entry
def compensate(gradient, rest, momentum, share):
    """Momentum u = share * u + gradient, residual w = w + u; then both at most float32's largest."""
    top = np.uint32(0)
    for i in range(len(gradient)):
        u = np.float32(np.float32(momentum[i] * share) + gradient[i])
        w = np.float32(rest[i] + u)
        momentum[i], rest[i] = u, w
        top = max(top, np.uint32(as_bits(u) & ABS), np.uint32(as_bits(w) & ABS))
    if top >= EXPONENT:
        _limit(momentum)
        _limit(rest)


@kernel
def _sample(values, row, drawn):
    """Bits of the magnitudes of elements that are drawn."""
    size = np.uint64(len(values))
    for i in range(len(drawn)):
        word = mix32(np.uint32(row + np.uint32(np.uint32(i) * np.uint32(GOLDEN))))
        place = np.int64(np.uint64(np.uint64(word) * size) >> np.uint64(32))
        drawn[i] = np.uint32(as_bits(values[place]) & ABS)


@kernel
def _narrow(places, found, count, edge):
    """Keep those from the edge on; their number."""
    kept = 0
    for i in range(count):
        places[kept], found[kept] = places[i], found[i]
        kept += 1 if found[i] >= edge else 0
    return kept


@kernel
def _search(values, drawn, bounds, places, found, counts):
    """Places of the elements above a threshold that the bounds allow; their number or -1, and the largest bits."""
    wanted, least, most, aim = bounds
    count, top, before = 0, np.uint32(0), len(drawn) + 1
    for _ in range(1 + TRIES):
        edge, _ = threshold(drawn, aim, counts)
        if aim < before and count > 0:
            count = _narrow(places, found, count, edge)
        else:
            count, top = collect(values, None, edge, places, found)
        if least <= count <= most:
            return count, top
        before, aim = aim, min(len(drawn), (2 * aim * wanted + count) // (2 * count))
        if aim == 0 or aim == before:
            break
    return -1, top


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
def above(values, memory, offsets, ids, bounds, key, indices, target, numbers):
    """As in the reference; bounds are its tables, int64 [5, s]; first segment not finite, or -1."""
    wanted, least, most, samples, aims = bounds
    size = 0
    for s in range(len(ids)):
        size = max(size, offsets[s + 1] - offsets[s])
    # One more: elements are written before it is known whether they are kept.
    places, found = np.empty(size + 1, dtype=np.int32), np.empty(size + 1, dtype=np.uint32)
    counts, drawn, at = np.empty(BINS, dtype=np.int32), np.empty(max(samples), dtype=np.uint32), 0
    for s in range(len(ids)):
        first, part, end = offsets[s], values[offsets[s] : offsets[s + 1]], at + most[s]
        count, top = -1, np.uint32(0)
        if samples[s]:
            _sample(part, row_key(key, ids[s]), drawn[: samples[s]])
            limits = (wanted[s], least[s], most[s], aims[s])
            count, top = _search(part, drawn[: samples[s]], limits, places, found, counts)
        if count < 0:
            count = wanted[s]
            own = slice(at, at + count)
            top = choose(part, None, count, places, found, counts, indices[own], target[own], first)
            indices[at + count : end] = np.int32(first)
            target[at + count : end] = np.float32(0.0)
        else:
            _write(part, places, count, first, indices[at:end], target[at:end])
        if top >= EXPONENT:
            return s
        if memory is not None:
            for buffer in memory:
                _clear(buffer, indices[at : at + count])
        numbers[s], at = count, end
    return -1
