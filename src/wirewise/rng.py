"""Counter-based random number generator of wirewise.

A random number is a pure function of *what it is for* (seed, epoch, stream, global row, column), never of the order
of calls. Stochastic rounding and dropout are therefore the same on one rank and on many, for any number of threads
and any batching of rows, and every kernel (torch, numba, Triton) generates the same bits.

The generator is a 32-bit avalanche hash (`mix32`, the two-multiplication "lowbias32" function found by C.
Wellons' hash prospector) of a keyed counter. One hash serves two columns with 16 bits each:

    row_key(key, row)    = mix32(key ^ mix32(row_low ^ mix32(row_high + GOLDEN)))
    half                 = ceil(width / 2)
    hash(j)              = mix32(row_key + j * GOLDEN)           for j in [0, half)
    column c <  half     : the low 16 bits of hash(c)
    column c >= half     : the high 16 bits of hash(c - half)

This module holds the scalar functions for numba kernels and the NumPy forms; it does not import torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit

__all__ = ["GOLDEN", "half_width", "mix", "mix32", "row_key", "row_keys", "stream_key", "uniform16"]

GOLDEN = 0x9E3779B9
_M1, _M2 = 0x7FEB352D, 0x846CA68B
_MASK = 0xFFFFFFFF


@njit(inline="always")
def mix32(x: int) -> np.uint32:
    """Hash a 32-bit word (numba: ``uint32`` to ``uint32``)."""
    x = np.uint32(x)
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(_M1))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(_M2))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@njit(inline="always")
def row_key(key: int, row: int) -> np.uint32:
    """Derive the key of a row of a stream, in numba kernels; `row` is a global row id below 2**63."""
    low = np.uint32(row & 0xFFFFFFFF)
    high = np.uint32((row >> 32) & 0xFFFFFFFF)
    inner = mix32(np.uint32(low ^ mix32(np.uint32(high + np.uint32(GOLDEN)))))
    return mix32(np.uint32(np.uint32(key) ^ inner))


def mix(x: Any) -> Any:
    """Apply `mix32` to a Python int below 2^32, or elementwise to an array (uint64) or tensor (int64).

    Products of tensors wrap at 64 bits, which keeps the low 32 bits correct.
    """
    x = x ^ (x >> 16)
    x = (x * _M1) & _MASK
    x = x ^ (x >> 15)
    x = (x * _M2) & _MASK
    return x ^ (x >> 16)


def stream_key(seed: int, *words: int) -> int:
    """Fold a seed and any number of integers (epoch, layer, direction, ...) into one 32-bit stream key."""
    key = 0
    for word in (seed, *words):
        for half in (int(word) & _MASK, (int(word) >> 32) & _MASK):
            key = mix((key * 31 + half + GOLDEN) & _MASK)
    return key


def row_keys(key: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Derive the keys of many rows. Shape [n] in, [n] out."""
    wide = np.asarray(rows).astype(np.uint64)
    mask = np.uint64(_MASK)
    high = mix(((wide >> np.uint64(32)) + np.uint64(GOLDEN)) & mask)
    return mix(np.uint64(key) ^ mix((wide & mask) ^ high)).astype(np.uint32)


def half_width(width: int) -> int:
    """Number of hashes per row of `width` columns: one for each pair of columns."""
    return (width + 1) // 2


def uniform16(key: int, rows: NDArray[np.int64], width: int) -> NDArray[np.uint16]:
    """16 random bits for every (row, column). Shapes: rows [n] -> [n, width]."""
    half = half_width(width)
    counter = (np.arange(half, dtype=np.uint64) * np.uint64(GOLDEN)) & np.uint64(_MASK)
    words = mix((row_keys(key, rows).astype(np.uint64)[:, None] + counter[None, :]) & np.uint64(_MASK))
    both = np.concatenate([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=1)
    return both[:, :width].astype(np.uint16)
