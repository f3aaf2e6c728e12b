"""Compiled sparse kernels for one CPU thread.

Both kernels walk rows in order and add one neighbour at a time into a row that stays in the first-level cache; the
inner loop over columns is contiguous and vectorised. What bounds them is fetching neighbour rows, so each step asks
for the row that comes a few neighbours later. Sums run in the order of the entries: results are bit-identical
between runs, thread counts and row blocks. `contract` lets a product and a sum become one fused operation.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["gather_rows", "scatter_rows"]

_AHEAD = 6
_LINE_BYTES = 64


@intrinsic  # type: ignore[untyped-decorator]
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


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})  # type: ignore[untyped-decorator]
def gather_rows(begin, end, indices, weight, split, own, halo, scale, base, base_step, accumulate, out):  # type: ignore[no-untyped-def]
    """out[r] = sum over entries e of row r of weight[e] * source row, plus what the row starts from.

    Column c < split reads own[c], else halo[c - split]. A row starts from out[r] (accumulate), from
    scale[i] * base[i] with i = r * base_step (scale not empty), or from zero.
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
        for e in range(begin[r], end[r]):
            later = np.int64(indices[min(e + _AHEAD, last)])
            if later < split:
                for d in range(0, width, line):
                    _prefetch(own, later, d)
            else:
                for d in range(0, width, line):
                    _prefetch(halo, later - split, d)
            c = np.int64(indices[e])
            a = weight[e]
            # Unsigned, so that the compiler does not add a case for negative subscripts.
            if c < split:
                k = np.uint64(c)
                for d in range(width):
                    out[r, d] += a * own[k, d]
            else:
                k = np.uint64(c - split)
                for d in range(width):
                    out[r, d] += a * halo[k, d]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})  # type: ignore[untyped-decorator]
def scatter_rows(begin, end, indices, weight, rows, out):  # type: ignore[no-untyped-def]
    """out[c] += weight[e] * rows[r] for every entry e = (r, c): the transposed product, reading `rows` once in order."""
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
