"""Shared parts of the numba kernels: compilation, float bits, copies, cache lines.

numba keeps compiled code on disk for each source file and does not see changes in functions from another:
delete `__pycache__` after editing this file.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from wirewise.jit import njit

__all__ = ["as_bits", "as_float", "bfloat16", "copy_bytes", "entry", "inline", "kernel", "prefetch"]

entry = njit()
"""Functions that Python calls; they allocate the scratch memory."""

# Reference counts would cost a row a dozen atomic updates, a quarter of the time at 256 columns.
_WITHOUT_COUNTS: dict[str, Any] = {"_nrt": False}

kernel = njit(**_WITHOUT_COUNTS)
"""Functions without reference counts, which cannot allocate."""

inline = numba.njit(inline="always", **_WITHOUT_COUNTS)
"""Expressions with a name."""

_LINE = 64


@intrinsic
def _prefetch_line(typingctx, array, offset):
    """Ask for the cache line at a byte offset from the start of an array; never faults."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(builder.bitcast(view.data, ir.IntType(8).as_pointer()), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *(ir.IntType(32) for _ in range(3))])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@inline
def prefetch(array, row, row_size):
    """Prefetch one row of a matrix; the hardware prefetcher cannot predict gathered rows."""
    for start in range(row * row_size, (row + 1) * row_size, _LINE):
        _prefetch_line(array, start)


@inline
def as_float(bits):
    """Reinterpret bits (uint32) as a float32."""
    return np.uint32(bits).view(np.float32)


@inline
def as_bits(value):
    """Reinterpret a float32 as its bits, uint32."""
    return np.float32(value).view(np.uint32)


@inline
def bfloat16(raw):
    """Convert the bits of a bfloat16 (uint16) to float32."""
    return as_float(np.uint32(np.uint32(raw) << np.uint32(16)))


@kernel
def copy_bytes(source, target):
    for j in range(len(target)):
        target[j] = source[j]
