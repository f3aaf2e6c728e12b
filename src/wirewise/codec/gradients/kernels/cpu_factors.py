"""Numba kernels of low-rank factors; matrices and factors are as in `reference_factors.py`.

BLAS libraries are tuned for wide factors. A product with thin factors is bound by reading the matrix, if each element
is used for all columns of the factor while it is in cache. Columns are processed in fours, padded with 0.
"""

from __future__ import annotations

import numpy as np

from wirewise.codec.gradients.kernels.reference_factors import NOISE
from wirewise.codec.kernels.words import entry, inline, kernel
from wirewise.jit import njit

__all__ = ["add_product", "left_factor", "orthogonalise", "right_factor"]

_FOUR = 4
"""Ranks, and rows of a matrix, that are multiplied together."""
_COLUMNS = 512
"""Columns of a tile: of so many, the rows and ranks that are multiplied together stay in the first cache."""

# Sums may be taken in any order, so that they are vectorised.
_reduction = njit(fastmath={"reassoc", "nsz"}, _nrt=False)
_thin_reduction = njit(fastmath={"reassoc", "nsz", "contract"}, _nrt=False)


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
    """Orthonormalise the rows of each factor; tables are first element, rows and columns, int64 [factors, 3]."""
    for start, rows, columns in tables:
        _orthonormal(flat[start : start + rows * columns].reshape(rows, columns))


@kernel
def _add(values, gradient):
    for j in range(len(values)):
        values[j] += gradient[j]


@inline
def _four(rows, n, lo, hi):
    """Columns lo..hi of four rows, one after another."""
    return rows[lo:hi], rows[n + lo : n + hi], rows[2 * n + lo : 2 * n + hi], rows[3 * n + lo : 3 * n + hi]


@inline
def _ranks(left, k, i):
    """Products of row i of the left factor for four ranks."""
    return left[k, i], left[k + 1, i], left[k + 2, i], left[k + 3, i]


@entry
def _padded(factor, columns):
    """Ranks in fours, columns in so many."""
    rank, size = factor.shape
    rows = np.zeros((-(-rank // _FOUR) * _FOUR, -(-size // columns) * columns), dtype=np.float32)
    rows[:rank, :size] = factor
    return rows


@_thin_reduction
def _products(a, b, c, d, p, q, r, s):
    """Products of four rows with four ranks, by row."""
    ap = aq = ar = as_ = bp = bq = br = bs = np.float32(0.0)
    cp = cq = cr = cs = dp = dq = dr = ds = np.float32(0.0)
    for j in range(len(a)):
        ap += a[j] * p[j]
        aq += a[j] * q[j]
        ar += a[j] * r[j]
        as_ += a[j] * s[j]
        bp += b[j] * p[j]
        bq += b[j] * q[j]
        br += b[j] * r[j]
        bs += b[j] * s[j]
        cp += c[j] * p[j]
        cq += c[j] * q[j]
        cr += c[j] * r[j]
        cs += c[j] * s[j]
        dp += d[j] * p[j]
        dq += d[j] * q[j]
        dr += d[j] * r[j]
        ds += d[j] * s[j]
    return (ap, aq, ar, as_), (bp, bq, br, bs), (cp, cq, cr, cs), (dp, dq, dr, ds)


@entry
def left_factor(values, gradient, right, left):
    """Compute the left factor: values [size], gradient [size] or None, right [rank, n], left [rank, m]."""
    rank, m = left.shape
    n = right.shape[1]
    ranks, end, last = _padded(right, 1), (m - 1) // _FOUR * _FOUR, np.zeros(_FOUR * n, dtype=np.float32)
    for i in range(0, m, _FOUR):
        lo, hi = i * n, min((i + _FOUR) * n, len(values))
        if gradient is not None:
            _add(values[lo:hi], gradient[lo:hi])
        rows = values[lo:hi]
        if i == end:
            last[: hi - lo] = rows
            rows = last
        a, b, c, d = _four(rows, n, 0, n)
        for k in range(0, rank, _FOUR):
            found = _products(a, b, c, d, ranks[k], ranks[k + 1], ranks[k + 2], ranks[k + 3])
            for row in range(min(_FOUR, m - i)):
                for r in range(min(_FOUR, rank - k)):
                    left[k + r, i + row] = found[row][r]


@kernel
def _spread(sums, a, b, c, d, left, k, i):
    """Add four rows to the sums of four ranks, `_COLUMNS` apart, times what the left factor says of each pair.

    Sums are in one array, so that the compiler sees that they do not overlap and works on all of them at once.
    """
    ap, aq, ar, as_ = _ranks(left, k, i)
    bp, bq, br, bs = _ranks(left, k, i + 1)
    cp, cq, cr, cs = _ranks(left, k, i + 2)
    dp, dq, dr, ds = _ranks(left, k, i + 3)
    for j in range(len(a)):
        v, w, x, y = a[j], b[j], c[j], d[j]
        sums[j] += ap * v + bp * w + cp * x + dp * y
        sums[_COLUMNS + j] += aq * v + bq * w + cq * x + dq * y
        sums[2 * _COLUMNS + j] += ar * v + br * w + cr * x + dr * y
        sums[3 * _COLUMNS + j] += as_ * v + bs * w + cs * x + ds * y


@entry
def right_factor(values, left, right):
    """Compute the right factor: values [size], left [rank, m], right [rank, n]; in reverse order, for cache reuse."""
    rank, m = left.shape
    n = right.shape[1]
    shares, blocks = _padded(left, _FOUR), -(-n // _COLUMNS)
    sums = np.zeros((len(shares) // _FOUR, blocks, _FOUR * _COLUMNS), dtype=np.float32)
    end, last = (m - 1) // _FOUR * _FOUR, np.zeros(_FOUR * n, dtype=np.float32)
    last[: len(values) - end * n] = values[end * n :]
    for i in range(end, -1, -_FOUR):
        rows = last if i == end else values[i * n : (i + _FOUR) * n]
        for block in range(blocks):
            a, b, c, d = _four(rows, n, block * _COLUMNS, min((block + 1) * _COLUMNS, n))
            for k in range(len(sums)):
                _spread(sums[k, block], a, b, c, d, shares, k * _FOUR, i)
    for k in range(rank):
        for block in range(blocks):
            lo, hi, at = block * _COLUMNS, min((block + 1) * _COLUMNS, n), k % _FOUR * _COLUMNS
            right[k, lo:hi] = sums[k // _FOUR, block, at : at + hi - lo]


@kernel
def _combine(a, b, c, d, ranks, left, k, i, keep):
    """Write the products of four rows with four ranks, `_COLUMNS` apart; where rows are kept add them."""
    ap, aq, ar, as_ = _ranks(left, k, i)
    bp, bq, br, bs = _ranks(left, k, i + 1)
    cp, cq, cr, cs = _ranks(left, k, i + 2)
    dp, dq, dr, ds = _ranks(left, k, i + 3)
    for j in range(len(a)):
        p, q, r, s = ranks[j], ranks[_COLUMNS + j], ranks[2 * _COLUMNS + j], ranks[3 * _COLUMNS + j]
        v, w = ap * p + aq * q + ar * r + as_ * s, bp * p + bq * q + br * r + bs * s
        x, y = cp * p + cq * q + cr * r + cs * s, dp * p + dq * q + dr * r + ds * s
        if keep:
            v, w, x, y = a[j] + v, b[j] + w, c[j] + x, d[j] + y
        a[j], b[j], c[j], d[j] = v, w, x, y


@entry
def add_product(left, right, share, first, out):
    """Add left^T right, scaled by `share`, to out [size]; left [rank, m], right [rank, n]."""
    m, n = left.shape[1], right.shape[1]
    shares, padded = _padded(left, _FOUR), _padded(right, _COLUMNS)
    blocks = padded.shape[1] // _COLUMNS
    ranks = np.empty((len(padded) // _FOUR, blocks, _FOUR * _COLUMNS), dtype=np.float32)
    for k in range(len(padded)):
        for block in range(blocks):
            lo, at = block * _COLUMNS, k % _FOUR * _COLUMNS
            ranks[k // _FOUR, block, at : at + _COLUMNS] = share * padded[k, lo : lo + _COLUMNS]
    end, last = (m - 1) // _FOUR * _FOUR, np.zeros(_FOUR * n, dtype=np.float32)
    last[: len(out) - end * n] = out[end * n :]
    for i in range(0, m, _FOUR):
        rows = last if i == end else out[i * n : (i + _FOUR) * n]
        for block in range(blocks):
            a, b, c, d = _four(rows, n, block * _COLUMNS, min((block + 1) * _COLUMNS, n))
            for k in range(len(ranks)):
                _combine(a, b, c, d, ranks[k, block], shares, k * _FOUR, i, k > 0 or not first)
    out[end * n :] = last[: len(out) - end * n]
