"""Bit masks of the large elements among 64: one vector compare, where numba would emit 64 branches."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

__all__ = ["WORD", "count_bits", "first_bit", "large"]

WORD = 64
_ABS = 0x7FFFFFFF


@intrinsic
def large(typingctx, values, start, edge):
    """Mask whose bit i is set if the magnitude bits of values[start + i] are at least `edge`; reads 64 values."""

    def generate(context, builder, signature, arguments):
        number, word = ir.IntType(32), ir.VectorType(ir.IntType(32), WORD)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), word.as_pointer())
        magnitudes = builder.and_(builder.load(pointer, align=4), ir.Constant(word, [_ABS] * WORD))
        nothing = ir.Constant(word, ir.Undefined)
        single = builder.insert_element(nothing, arguments[2], ir.Constant(number, 0))
        edges = builder.shuffle_vector(single, nothing, ir.Constant(word, [0] * WORD))
        # Without the sign bit signed numbers have the same order, and that compare is one instruction.
        return builder.bitcast(builder.icmp_signed(">=", magnitudes, edges), ir.IntType(WORD))

    return types.uint64(values, types.int64, types.uint32), generate


@intrinsic
def first_bit(typingctx, word):
    """Index of the lowest set bit of a nonzero word."""

    def generate(context, builder, signature, arguments):
        return builder.zext(builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1)), ir.IntType(64))

    return types.int64(types.uint64), generate


@intrinsic
def count_bits(typingctx, word):
    """Number of set bits of a word."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate
