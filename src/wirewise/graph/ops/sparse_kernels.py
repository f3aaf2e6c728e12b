"""Compiled sparse kernels for one CPU thread.

Both kernels walk rows in order and accumulate neighbours into a row in L1 cache; the inner loop over columns is
contiguous and vectorised. They are bound by fetching neighbour rows, so each step prefetches the row a few neighbours
ahead (a prefetch outside the array has no effect). Sums run in the order of the entries: results are bit-identical
between runs, row blocks and column blocks. `contract` lets a product and a sum become one fused operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from wirewise.jit import njit

__all__ = ["gather_rows", "scatter_rows"]

_AHEAD = 6
_LINE_BYTES = 64


@intrinsic
def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask the CPU to load the cache line of array[row, column]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        where = cgutils.get_item_pointer(context, builder, kind, view, [args[1], args[2]], wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0i8"
        )
        read, keep, data = (ir.Constant(word, v) for v in (0, 3, 1))
        builder.call(function, [builder.bitcast(where, byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@njit(error_model="numpy", fastmath={"contract"})
def gather_rows(begin, end, indices, weight, first, source, scale, base, base_step, accumulate, out):
    """Set out[r] to its start plus the sum of weight[e] * source[indices[e] - first], begin[r] <= e < end[r].

    The initial value of a row is out[r] (accumulate), scale[i] * base[i] with i = r * base_step (if scale is not
    empty), or zero.
    """
    width = out.shape[1]
    line = _LINE_BYTES // out.itemsize
    last = len(indices) - 1
    for r in range(len(begin)):
        if not accumulate:
            if len(scale) > 0:
                i = r * base_step
                a = scale[i]
                for d in range(width):
                    out[r, d] = a * base[i, d]
            else:
                for d in range(width):
                    out[r, d] = 0
        e = begin[r]
        # Two neighbours at a time save half of the loads and stores of the output row.
        while e + 1 < end[r]:
            near = np.int64(indices[min(e + _AHEAD, last)]) - first
            far = np.int64(indices[min(e + 1 + _AHEAD, last)]) - first
            for d in range(0, width, line):
                _prefetch(source, near, d)
            for d in range(0, width, line):
                _prefetch(source, far, d)
            # Unsigned, so that the compiler does not add a case for negative subscripts.
            k = np.uint64(indices[e] - first)
            k2 = np.uint64(indices[e + 1] - first)
            a = weight[e]
            b = weight[e + 1]
            for d in range(width):
                out[r, d] = (out[r, d] + a * source[k, d]) + b * source[k2, d]
            e += 2
        if e < end[r]:
            later = np.int64(indices[min(e + _AHEAD, last)]) - first
            for d in range(0, width, line):
                _prefetch(source, later, d)
            k = np.uint64(indices[e] - first)
            a = weight[e]
            for d in range(width):
                out[r, d] += a * source[k, d]


@njit(error_model="numpy", fastmath={"contract"})
def scatter_rows(begin, end, indices, weight, rows, out):
    """Add weight[e] * rows[r] to out[c] for every entry e = (r, c): the transposed product."""
    width = out.shape[1]
    line = _LINE_BYTES // out.itemsize
    last = len(indices) - 1
    for r in range(len(begin)):
        for e in range(begin[r], end[r]):
            later = np.int64(indices[min(e + _AHEAD, last)])
            for d in range(0, width, line):
                _prefetch(out, later, d)
            c = np.uint64(indices[e])
            a = weight[e]
            for d in range(width):
                out[c, d] += a * rows[r, d]
