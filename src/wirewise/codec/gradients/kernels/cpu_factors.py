"""Numba kernels of low-rank factors; `reference_factors.py` says what a matrix and its factors are.

Libraries of matrix products are made for wide factors; of thin ones a product takes as long as reading the matrix, if
the elements that were read are used for all ranks while they are in cache. Ranks are taken in fours, padded with 0.
"""

from __future__ import annotations

import numba
import numpy as np

from wirewise.codec.gradients.kernels.reference_factors import NOISE
from wirewise.codec.kernels.words import entry, inline, kernel

__all__ = ["add_product", "left_factor", "orthogonalise", "right_factor"]

_FOUR = 4
"""Ranks, and rows of a matrix, that are multiplied together."""
_COLUMNS = 512
"""Of so many rows and ranks, multiplied together, that stay in the first cache."""

# Sums may be taken in any order, so that they are vectorised.
_reduction = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"}, _nrt=False)
_thin_reduction = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"}, _nrt=False)


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


@kernel
def _add(values, gradient):
    for j in range(len(values)):
        values[j] += gradient[j]


@_thin_reduction
def _dots(v, w, a, b, c, d):
    """Products of two rows with the beginnings of four others."""
    va = vb = vc = vd = wa = wb = wc = wd = np.float32(0.0)
    for j in range(len(v)):
        x, y = v[j], w[j]
        va += x * a[j]
        vb += x * b[j]
        vc += x * c[j]
        vd += x * d[j]
        wa += y * a[j]
        wb += y * b[j]
        wc += y * c[j]
        wd += y * d[j]
    return (va, vb, vc, vd), (wa, wb, wc, wd)


@kernel
def _combine(out, a, b, c, d, shares, keep):
    """Write the sum of four rows, times a share each, to one as long or shorter; where it is kept add it."""
    s, t, u, v = shares
    if keep:
        for j in range(len(out)):
            out[j] += s * a[j] + t * b[j] + u * c[j] + v * d[j]
    else:
        for j in range(len(out)):
            out[j] = s * a[j] + t * b[j] + u * c[j] + v * d[j]


@inline
def _row(values, i, n):
    """Row i of a matrix; the last one may be short."""
    return values[i * n : min((i + 1) * n, len(values))]


@entry
def _padded(factor, share):
    """Ranks in fours, times a share."""
    rank, size = factor.shape
    rows = np.zeros((-(-rank // _FOUR) * _FOUR, size), dtype=np.float32)
    for k in range(rank):
        for i in range(size):
            rows[k, i] = share * factor[k, i]
    return rows


@entry
def left_factor(values, gradient, right, left):
    """Values [size], gradient [size] or None, right [rank, n], left [rank, m]."""
    rank, m = left.shape
    n = right.shape[1]
    ranks, whole, i = _padded(right, np.float32(1.0)), len(values) // n, 0
    while i < m:
        paired = i + 1 < whole
        v, w = _row(values, i, n), _row(values, i + paired, n)
        if gradient is not None:
            _add(v, _row(gradient, i, n))
            if paired:
                _add(w, _row(gradient, i + 1, n))
        for k in range(0, rank, _FOUR):
            of_v, of_w = _dots(v, w, ranks[k], ranks[k + 1], ranks[k + 2], ranks[k + 3])
            for r in range(min(_FOUR, rank - k)):
                left[k + r, i] = of_v[r]
                left[k + r, i + paired] = of_w[r]
        i += 1 + paired


@kernel
def _spread(sums, a, b, c, d, left, k, i):
    """Add four rows to the sums of four ranks, `_COLUMNS` apart, times what the left factor says of each pair.

    One array of sums, so that the compiler sees that they do not overlap and keeps vectors of all of them at hand.
    """
    sa, sb, sc, sd = left[k, i], left[k, i + 1], left[k, i + 2], left[k, i + 3]
    ta, tb, tc, td = left[k + 1, i], left[k + 1, i + 1], left[k + 1, i + 2], left[k + 1, i + 3]
    ua, ub, uc, ud = left[k + 2, i], left[k + 2, i + 1], left[k + 2, i + 2], left[k + 2, i + 3]
    va, vb, vc, vd = left[k + 3, i], left[k + 3, i + 1], left[k + 3, i + 2], left[k + 3, i + 3]
    for j in range(len(a)):
        x, y, z, w = a[j], b[j], c[j], d[j]
        sums[j] += sa * x + sb * y + sc * z + sd * w
        sums[_COLUMNS + j] += ta * x + tb * y + tc * z + td * w
        sums[2 * _COLUMNS + j] += ua * x + ub * y + uc * z + ud * w
        sums[3 * _COLUMNS + j] += va * x + vb * y + vc * z + vd * w


@entry
def right_factor(values, left, right):
    """Values [size], left [rank, m], right [rank, n]; from the end, where more may be in cache from `left_factor`."""
    rank, m = left.shape
    n = right.shape[1]
    blocks = -(-n // _COLUMNS)
    shares = np.zeros((-(-rank // _FOUR) * _FOUR, -(-m // _FOUR) * _FOUR), dtype=np.float32)
    shares[:rank, :m] = left
    sums = np.zeros((len(shares) // _FOUR, blocks, _FOUR * _COLUMNS), dtype=np.float32)
    # The last rows: fewer than four, or one of them short.
    end = (m - 1) // _FOUR * _FOUR
    last = np.zeros(_FOUR * n, dtype=np.float32)
    last[: len(values) - end * n] = values[end * n :]
    for i in range(end, -1, -_FOUR):
        rows = last if i == end else values[i * n : (i + _FOUR) * n]
        for block in range(blocks):
            lo, hi = block * _COLUMNS, min((block + 1) * _COLUMNS, n)
            a, b, c, d = (
                rows[lo:hi],
                rows[n + lo : n + hi],
                rows[2 * n + lo : 2 * n + hi],
                rows[3 * n + lo : 3 * n + hi],
            )
            for k in range(len(sums)):
                _spread(sums[k, block], a, b, c, d, shares, k * _FOUR, i)
    for k in range(rank):
        for block in range(blocks):
            lo, hi, at = block * _COLUMNS, min((block + 1) * _COLUMNS, n), k % _FOUR * _COLUMNS
            right[k, lo:hi] = sums[k // _FOUR, block, at : at + hi - lo]


@entry
def add_product(left, right, share, first, out):
    """Left [rank, m], right [rank, n], out [size]."""
    m, n = left.shape[1], right.shape[1]
    ranks, shares_of = _padded(right, share), _padded(left, np.float32(1.0))
    for i in range(m):
        row = _row(out, i, n)
        for k in range(0, len(ranks), _FOUR):
            shares = shares_of[k, i], shares_of[k + 1, i], shares_of[k + 2, i], shares_of[k + 3, i]
            _combine(row, ranks[k], ranks[k + 1], ranks[k + 2], ranks[k + 3], shares, k > 0 or not first)
