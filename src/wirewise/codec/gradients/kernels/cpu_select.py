"""Numba kernels that select elements: the largest, by a histogram of float bits, or random distinct ones."""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.cpu_values import ABS, EXPONENT, LARGEST, part_of, sum_into, value
from wirewise.codec.kernels.words import as_bits, entry, inline, kernel, prefetch
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["BINS", "accumulate", "add_sparse", "choose", "collect", "draw", "largest", "take", "threshold"]

BINS = 2048
"""Bins of a histogram of magnitudes: 8 bits of exponent and 3 of mantissa."""
_COARSE = np.uint32(20)
_GROUP, _PART = 32, 8
"""Elements that are passed over together when none of them is large, and then fewer of them."""
_SAMPLED = 1 << 15
"""Segments from this size are sampled first; smaller ones are counted in full."""
_STRIDE = 17
_MASK32 = np.uint64(0xFFFFFFFF)
_AHEAD, _BYTES = 16, 4
"""Elements that are asked for before they are read, and bytes of each."""


@kernel
def _bits(gradient, memory, i):
    return np.uint32(as_bits(value(gradient, memory, i)) & ABS)


@kernel
def _edge(gradient, memory, wanted, stride, counts):
    """Bits above which about `wanted` of every `stride`-th element lie; exact at or above for stride 1."""
    counts[:] = 0
    for i in range(0, len(gradient), stride):
        counts[_bits(gradient, memory, i) >> _COARSE] += 1
    place, above = BINS - 1, counts[BINS - 1]
    while above < wanted and place > 0:
        place -= 1
        above += counts[place]
    return np.uint32(np.uint32(place) << _COARSE)


@kernel
def _top(gradient, memory, lo, hi):
    """Largest bits of elements lo..hi."""
    top = np.uint32(0)
    for i in range(hi - lo):
        # Unsigned indices do not count from the end, so reads are vectorised.
        top = max(top, _bits(gradient, memory, np.uint64(lo + i)))
    return top


@inline
def _keep_from(gradient, memory, lo, hi, edge, places, found, count):
    """Write those of elements lo..hi from the edge on; how many there are by now."""
    for i in range(lo, hi):
        bits = _bits(gradient, memory, np.uint64(i))
        # Written anyway and kept by the count: no branch that is hard to predict.
        places[np.uint64(count)] = i
        found[np.uint64(count)] = bits
        count += 1 if bits >= edge else 0
    return count


@kernel
def collect(gradient, memory, edge, places, found):
    """Collect indices and bits of elements at or above the edge, ascending; returns their number and largest bits."""
    count, top = 0, np.uint32(0)
    for lo in range(0, len(gradient), _GROUP):
        hi = min(lo + _GROUP, len(gradient))
        here = _top(gradient, memory, lo, hi)
        top = max(top, here)
        if here >= edge:
            for part in range(lo, hi, _PART):
                if _top(gradient, memory, part, min(part + _PART, hi)) >= edge:
                    count = _keep_from(
                        gradient, memory, part, min(part + _PART, hi), edge, places, found, count
                    )
    return count, top


@kernel
def threshold(found, wanted, counts):
    """Find the bits of the `wanted`-th largest element, and how many elements with these bits to take."""
    prefix, known = np.uint32(0), np.uint32(31)
    for width in (np.uint32(11), np.uint32(10), np.uint32(10)):
        shift = np.uint32(known - width)
        counts[:] = 0
        for i in range(len(found)):
            if np.uint32(found[i] >> known) == prefix:
                counts[np.uint32(found[i] >> shift) & np.uint32(np.uint32(1 << width) - 1)] += 1
        place = BINS - 1
        while counts[place] < wanted:
            wanted -= counts[place]
            place -= 1
        prefix, known = np.uint32(np.uint32(prefix << width) | np.uint32(place)), shift
    return prefix, wanted


@kernel
def choose(gradient, memory, wanted, places, found, counts, indices, values, first):
    """Write the `wanted` largest elements of the segment that starts at `first`; returns the largest bits."""
    size = len(gradient)
    stride = _STRIDE if size >= _SAMPLED else 1
    # A quarter more than needed: too few happens rarely, and then all elements are counted.
    share = wanted if stride == 1 else (5 * wanted) // (4 * stride) + 8
    edge = _edge(gradient, memory, share, stride, counts)
    count, top = collect(gradient, memory, edge, places, found)
    if count < wanted:
        edge = _edge(gradient, memory, wanted, 1, counts)
        count, top = collect(gradient, memory, edge, places, found)
    limit, equals = threshold(found[:count], wanted, counts)
    at = 0
    for i in range(count):
        if found[i] > limit or (found[i] == limit and equals > 0):
            equals -= 1 if found[i] == limit else 0
            indices[at] = places[i] + first
            values[at] = value(gradient, memory, places[i])
            at += 1
    return top


@entry
def largest(gradient, memory, offsets, firsts, indices, values):
    """Select the largest |v| of each segment into slots `firsts` [s + 1]; returns the first non-finite one, or -1."""
    most = 0
    for s in range(len(offsets) - 1):
        most = max(most, offsets[s + 1] - offsets[s])
    # One more: `collect` writes before it knows whether it keeps.
    places, found = np.empty(most + 1, dtype=np.int32), np.empty(most + 1, dtype=np.uint32)
    counts = np.empty(BINS, dtype=np.int32)
    for s in range(len(offsets) - 1):
        lo, hi, at, end = offsets[s], offsets[s + 1], firsts[s], firsts[s + 1]
        kept = part_of(memory, lo, hi)
        top = choose(
            gradient[lo:hi], kept, end - at, places, found, counts, indices[at:end], values[at:end], lo
        )
        if top >= EXPONENT:
            return s
    return -1


@kernel
def _distinct(row, size, wanted, seen, chosen):
    """Distinct places in the order of their draws; `seen` (zeros, a bit a place) marks them."""
    fair = np.uint64((1 << 32) % size)
    column, count = np.uint32(0), 0
    while count < wanted:
        word = mix32(np.uint32(row + np.uint32(column * np.uint32(GOLDEN))))
        column = np.uint32(column + np.uint32(1))
        product = np.uint64(np.uint64(word) * np.uint64(size))
        place = np.int64(product >> np.uint64(32))
        bit = np.uint8(1 << (place & 7))
        if np.uint64(product & _MASK32) >= fair and not seen[place >> 3] & bit:
            seen[place >> 3] |= bit
            chosen[count] = place
            count += 1


@entry
def draw(offsets, firsts, ids, key, indices):
    """Sample distinct indices of each segment; beyond half of it, the excluded indices are sampled instead."""
    for s in range(len(ids)):
        first, size = offsets[s], offsets[s + 1] - offsets[s]
        target = indices[firsts[s] : firsts[s + 1]]
        seen = np.zeros((size + 7) // 8, dtype=np.uint8)
        row = row_key(key, ids[s])
        if len(target) <= size // 2:
            _distinct(row, size, len(target), seen, target)
        else:
            _distinct(row, size, size - len(target), seen, target)
            at = 0
            for place in range(size):
                if not seen[place >> 3] & np.uint8(1 << (place & 7)):
                    target[at] = place
                    at += 1
        target += np.int32(first)


@entry
def accumulate(gradient, memory, offsets):
    """Compiled version of the reference."""
    for s in range(len(offsets) - 1):
        lo, hi = offsets[s], offsets[s + 1]
        if sum_into(memory[lo:hi], gradient[lo:hi], LARGEST) >= EXPONENT:
            return s
    return -1


@entry
def take(values, indices, clear, taken):
    """Compiled version of the reference; elements are prefetched, as hardware prefetchers cannot predict them."""
    for k in range(len(indices)):
        prefetch(values, np.int64(indices[min(k + _AHEAD, len(indices) - 1)]), _BYTES)
        taken[k] = values[indices[k]]
        if clear:
            values[indices[k]] = np.float32(0.0)


@entry
def add_sparse(indices, values, out):
    """Add values at indices, which are already checked."""
    for i in range(len(indices)):
        place = indices[i]
        out[place] = np.float32(out[place] + values[i])
