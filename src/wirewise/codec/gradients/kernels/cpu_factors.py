"""Numba kernel that makes low-rank factors orthonormal."""

from __future__ import annotations

import numba
import numpy as np

from wirewise.codec.gradients.kernels.reference_blocks import NOISE
from wirewise.codec.kernels.words import entry, kernel

__all__ = ["orthogonalise"]

# Sums may be taken in any order, so that they are vectorised.
_reduction = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"}, _nrt=False)


@_reduction
def _dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@kernel
def _subtract(row, other, share):
    for i in range(len(row)):
        row[i] = np.float32(np.float64(row[i]) - share * np.float64(other[i]))


@kernel
def _divide(row, length):
    for i in range(len(row)):
        row[i] = np.float32(np.float64(row[i]) / length)


@kernel
def _orthonormal(factor):
    for k in range(len(factor)):
        row = factor[k]
        before = np.sqrt(_dot(row, row))
        for _ in range(2):
            for j in range(k):
                _subtract(row, factor[j], _dot(factor[j], row))
        after = np.sqrt(_dot(row, row))
        if after > NOISE * before:
            _divide(row, after)
        else:
            row[:] = np.float32(0.0)


@entry
def orthogonalise(flat, tables):
    """Rows of each factor; tables are first element, rows and columns, int64 [factors, 3]."""
    for start, rows, columns in tables:
        _orthonormal(flat[start : start + rows * columns].reshape(rows, columns))
