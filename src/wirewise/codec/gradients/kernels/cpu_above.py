"""Numba kernels of deep gradient compression: update the memories and extract large elements in one pass.

Elements above the first threshold are extracted while their block is in cache: reading and clearing 1 % of the
elements later would fetch the same number of cache lines again. They are kept aside, and put back if too many were
extracted.
"""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.cpu_masks import WORD, count_bits, first_bit, large
from wirewise.codec.gradients.kernels.cpu_select import BINS, choose, threshold
from wirewise.codec.gradients.kernels.cpu_values import ABS, EXPONENT, LARGEST, infinite, limit, part_of, peak
from wirewise.codec.gradients.kernels.reference_select import TRIES
from wirewise.codec.kernels.words import as_bits, entry, inline, kernel
from wirewise.rng import GOLDEN, mix32, row_key

__all__ = ["above"]

_BLOCK = 512
"""Elements that are moved and searched together: three buffers of them stay in the first cache."""
_ONE, _ZERO = np.uint64(1), np.float32(0.0)
_ABOVE_ALL = np.uint32(0xFFFFFFFF)


@kernel
def _move(rest, gradient, momentum, share):
    """Momentum u = share * u + gradient, residual w = w + u; both at most float32's largest; largest bits of all."""
    top = np.uint32(0)
    for i in range(len(rest)):
        u = np.float32(np.float32(momentum[i] * share) + gradient[i])
        w = np.float32(rest[i] + u)
        momentum[i], rest[i] = u, w
        top = max(top, np.uint32(as_bits(u) & ABS), np.uint32(as_bits(w) & ABS))
    if top < EXPONENT:
        return top
    return max(limit(momentum, LARGEST), limit(rest, LARGEST), infinite(gradient))


@inline
def _moved(rest, gradient, momentum, share, i):
    """Value that `_move` will give a residual."""
    w = np.float32(rest[i] + np.float32(np.float32(momentum[i] * share) + gradient[i]))
    return np.float32(np.copysign(LARGEST, w)) if abs(w) > LARGEST else w


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
def _mark(values, edge, words):
    """A bit for each element from the edge on; the number of words."""
    whole = len(values) // WORD
    for j in range(whole):
        words[j] = large(values, j * WORD, edge)
    if whole * WORD == len(values):
        return whole
    words[whole] = np.uint64(0)
    for i in range(whole * WORD, len(values)):
        here = np.uint64(np.uint32(as_bits(values[i]) & ABS) >= edge)
        words[whole] |= np.uint64(here << np.uint64(i - whole * WORD))
    return whole + 1


@kernel
def _take(values, masked, kept, lo, hi, edge, aside, count):
    """Note the elements of lo..hi from the edge on behind the `count` that there are; 0 in memories that are kept.

    They are counted where there is room for no more. One loop over all of them: how many a word has cannot be
    guessed, and a wrong guess takes the processor longer than an element.
    """
    places, sent, held, words = aside
    here, filled = 0, np.uint64(0)
    for j in range(_mark(values[lo:hi], edge, words)):
        here += count_bits(words[j])
        filled |= np.uint64(np.uint64(words[j] != 0) << np.uint64(j))
    for k in range(count, count + here):
        j = first_bit(filled)
        i = lo + j * WORD + first_bit(words[j])
        words[j] &= np.uint64(words[j] - _ONE)
        filled ^= np.uint64(np.uint64(words[j] == 0) << np.uint64(j))
        if k < len(places):
            places[k], sent[k] = i, values[i]
            if kept is not None:
                values[i] = _ZERO
            if masked is not None:
                held[k], masked[i] = masked[i], _ZERO
    return count + here


@kernel
def _sweep(values, gradient, momentum, share, masked, kept, edge, aside):
    """Take all elements from the edge on, with a gradient after a move; their number, and the largest bits of all."""
    count, top = 0, np.uint32(0)
    for lo in range(0, len(values), _BLOCK):
        hi = min(lo + _BLOCK, len(values))
        if gradient is None:
            here = peak(values[lo:hi], None)[1]
        else:
            here = _move(values[lo:hi], gradient[lo:hi], momentum[lo:hi], share)
        count, top = _take(values, masked, kept, lo, hi, edge, aside, count), max(top, here)
    return count, top


@kernel
def _give_back(values, masked, kept, count, edge, aside):
    """Put what lies below an edge back to where it was taken; number of the others."""
    places, sent, held, _ = aside
    left = 0
    for k in range(min(count, len(places))):
        if np.uint32(as_bits(sent[k]) & ABS) >= edge:
            places[left], sent[left], held[left] = places[k], sent[k], held[k]
            left += 1
        elif kept is not None:
            values[places[k]] = sent[k]
            if masked is not None:
                masked[places[k]] = held[k]
    return left


@kernel
def _search(values, gradient, momentum, share, masked, kept, drawn, bounds, aside, counts):
    """Take the elements above a threshold that the bounds allow; their number, or -1, and the largest bits of all."""
    wanted, least, most, aim = bounds
    edge, _ = threshold(drawn, aim, counts)
    count, top = _sweep(values, gradient, momentum, share, masked, kept, edge, aside)
    for _ in range(TRIES):
        if least <= count <= most:
            break
        before, aim = aim, min(len(drawn), (2 * aim * wanted + count) // (2 * count))
        if aim == 0 or aim == before:
            break
        edge, _ = threshold(drawn, aim, counts)
        if aim < before and count <= len(aside[0]):
            count = _give_back(values, masked, kept, count, edge, aside)
        else:
            _give_back(values, masked, kept, count, _ABOVE_ALL, aside)
            count, _ = _sweep(values, None, momentum, share, masked, kept, edge, aside)
    if least <= count <= most and top < EXPONENT:
        return count, top
    _give_back(values, masked, kept, count, _ABOVE_ALL, aside)
    return -1, top


@kernel
def _write(aside, count, first, indices, target):
    for k in range(count):
        indices[k] = aside[0][k] + first
        target[k] = aside[1][k]


@kernel
def _clear(buffer, indices):
    for i in range(len(indices)):
        buffer[indices[i]] = _ZERO


@entry
def above(
    values, gradient, momentum, share, masked, kept, offsets, ids, bounds, key, indices, target, numbers
):
    """Select large elements as the reference does; bounds are its five tables, int64 [s].

    With a gradient, values are the residual; it and the momentum are updated first, as in `accumulate_above`. Returns
    the first non-finite segment, or -1. With `kept` (True or None), values are cleared where they are sent, and so is
    `masked`, the momentum or None.
    """
    wanted, least, most, samples, aims = bounds
    room = 0
    for s in range(len(ids)):
        room = max(room, 2 * most[s] if samples[s] else offsets[s + 1] - offsets[s] + 1)
    # Little, for new memory costs more than what is done with it here.
    places, sent, held = np.empty(room, np.int32), np.empty(room, np.float32), np.empty(room, np.float32)
    aside = (places, sent, held, np.empty(_BLOCK // WORD, dtype=np.uint64))
    counts, drawn, at = np.empty(BINS, dtype=np.int32), np.empty(max(samples), dtype=np.uint32), 0
    for s in range(len(ids)):
        lo, hi, end = offsets[s], offsets[s + 1], at + most[s]
        part, new, old = values[lo:hi], part_of(gradient, lo, hi), part_of(momentum, lo, hi)
        cleared = part_of(masked, lo, hi)
        count, top = -1, np.uint32(0)
        if samples[s]:
            own = drawn[: samples[s]]
            _sample(part, new, old, share, row_key(key, ids[s]), own)
            limits = (wanted[s], least[s], most[s], aims[s])
            count, top = _search(part, new, old, share, cleared, kept, own, limits, aside, counts)
        elif gradient is not None:
            top = _move(part, new, old, share)
        if top >= EXPONENT:
            return s
        if count < 0:
            count = wanted[s]
            own_indices, own_target = indices[at : at + count], target[at : at + count]
            # One more: `choose` writes elements before it knows whether they are kept.
            if len(places) <= hi - lo:
                places, sent = np.empty(hi - lo + 1, np.int32), np.empty(hi - lo + 1, np.float32)
            found = sent.view(np.uint32)
            top = choose(part, None, count, places, found, counts, own_indices, own_target, lo)
            if top >= EXPONENT:
                return s
            if kept is not None:
                _clear(values, own_indices)
                if masked is not None:
                    _clear(masked, own_indices)
        else:
            _write(aside, count, lo, indices[at:end], target[at:end])
        indices[at + count : end] = np.int32(lo)
        target[at + count : end] = _ZERO
        numbers[s], at = count, end
    return -1
