"""Compiled LayerNorm, ReLU and dropout for one CPU thread: one read and one write of the matrix per direction.

A row is processed in several short loops while it is in L1 cache: each loop touches few arrays, which is what lets
the compiler vectorise it. `reassoc` lets sums over a row run in vector lanes; their order is fixed by the compiled
code, so results are bit-identical between runs and row blocks on one machine. NaN stays NaN.

Dropout hashes a row into a scratch line first: hash j holds the bits of columns j (low half) and j + half
(high).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from wirewise.jit import njit
from wirewise.rng import GOLDEN, row_key

__all__ = ["norm_act_drop_backward", "norm_act_drop_forward"]

_BLOCK = 64
"""Rows whose gradient contributions are summed in working precision before they join the float64 totals."""


@intrinsic
def _hash(typing_context: Any, key: Any, column: Any) -> Any:
    """`rng.mix32(key + column * GOLDEN)` in 32-bit words; numba would compute it in 64, at half the speed."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)

        def constant(value: int) -> Any:
            return ir.Constant(word, value)

        x = builder.add(args[0], builder.mul(builder.trunc(args[1], word), constant(GOLDEN)))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant(16))), constant(0x7FEB352D))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant(15))), constant(0x846CA68B))
        return builder.xor(x, builder.lshr(x, constant(16)))

    return types.uint32(types.uint32, types.intp), generate


@njit(error_model="numpy")
def _keep_row(key, row, threshold, scale, words, keep):
    """Fill `keep` with `scale` for values that survive and 0 for values that are dropped."""
    half = len(words)
    zero = keep.dtype.type(0)
    inner = row_key(key, row)
    for j in range(half):
        words[j] = _hash(inner, j)
    # A view, since a sum as subscript could be negative for the compiler, which then would not vectorise.
    upper = keep[half:]
    for j in range(half):
        keep[j] = scale if np.int32(words[j] & np.uint32(0xFFFF)) >= threshold else zero
    for j in range(len(upper)):
        upper[j] = scale if np.int32(words[j] >> np.uint32(16)) >= threshold else zero


@njit(error_model="numpy", fastmath={"contract", "reassoc"})
def norm_act_drop_forward(x, gain, shift, rows, key, threshold, scale, eps, norm, floor, mean, rstd, out):
    """Set out to dropout(max(normalised x * gain + shift, floor)).

    A floor of -inf disables ReLU, a threshold of 0 dropout.
    """
    width = x.shape[1]
    share = x.dtype.type(1.0 / width)
    words = np.empty((width + 1) // 2, np.uint32)
    keep = np.empty(width, x.dtype)
    for r in range(len(x)):
        if norm:
            total = x.dtype.type(0)
            for d in range(width):
                total += x[r, d]
            m = total * share
            square = x.dtype.type(0)
            for d in range(width):
                t = x[r, d] - m
                square += t * t
            s = x.dtype.type(1.0) / np.sqrt(square * share + eps)
            mean[r] = m
            rstd[r] = s
            for d in range(width):
                t = (x[r, d] - m) * s * gain[d] + shift[d]
                out[r, d] = floor if t < floor else t
        else:
            for d in range(width):
                t = x[r, d]
                out[r, d] = floor if t < floor else t
        if threshold > 0:
            _keep_row(key, rows[r], threshold, scale, words, keep)
            for d in range(width):
                out[r, d] *= keep[d]


@njit(error_model="numpy", fastmath={"contract", "reassoc"})
def norm_act_drop_backward(
    x, gain, shift, rows, key, threshold, scale, norm, floor, mean, rstd, grad, dx, totals
):
    """Gradient to x, and to gain and shift added to totals[0] and totals[1]; the mask is regenerated."""
    width = x.shape[1]
    zero = x.dtype.type(0)
    share = x.dtype.type(1.0 / width)
    words = np.empty((width + 1) // 2, np.uint32)
    inner = np.empty(width, x.dtype)
    normal = np.empty(width, x.dtype)
    dgain = np.zeros(width, x.dtype)
    dshift = np.zeros(width, x.dtype)
    for r in range(len(x)):
        # inner: first the dropout factor, then the gradient below ReLU and dropout.
        if threshold > 0:
            _keep_row(key, rows[r], threshold, scale, words, inner)
        else:
            inner[:] = scale
        if not norm:
            for d in range(width):
                t = grad[r, d] * inner[d]
                dx[r, d] = zero if x[r, d] <= floor else t
            continue
        m = mean[r]
        s = rstd[r]
        for d in range(width):
            normal[d] = (x[r, d] - m) * s
        for d in range(width):
            t = grad[r, d] * inner[d]
            inner[d] = zero if normal[d] * gain[d] + shift[d] <= floor else t
        for d in range(width):
            t = inner[d]
            dgain[d] += t * normal[d]
            dshift[d] += t
        total = zero
        along = zero
        for d in range(width):
            t = inner[d] * gain[d]
            total += t
            along += t * normal[d]
        middle = total * share
        slope = along * share
        for d in range(width):
            dx[r, d] = s * (inner[d] * gain[d] - middle - normal[d] * slope)
        if r % _BLOCK == _BLOCK - 1 or r == len(x) - 1:
            for d in range(width):
                totals[0, d] += dgain[d]
                totals[1, d] += dshift[d]
            dgain[:] = zero
            dshift[:] = zero
