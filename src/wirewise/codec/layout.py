"""Layout of the messages in the buffer sent to one peer.

Messages (rows of one boundary matrix) are grouped by bit width, ascending, and keep their order in a group.
The buffer has no header, because both ends build the layout from the same table of bit widths:

    codes of all groups, row after row | zero points of quantized rows | steps of quantized rows

A row of b < 16 bits takes W = ceil(D*b/8) bytes and is planar: byte j holds columns j, j + W, j + 2W, ... in
ascending bit positions; positions at or beyond column D are zero. So rows are independent, and codes that
share a byte come from runs of columns, which suits SIMD. Rows of 16 bits are bfloat16, rows of 32 bits are
float32 (little-endian), both without parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import CodecError

__all__ = ["BITS", "Group", "MessageLayout", "row_bytes"]

BITS = (1, 2, 4, 8, 16, 32)
"""Bit widths of a message; 16 is bfloat16 and 32 is float32."""

PARAM_BYTES = (4, 6)
"""Bytes of the parameters of a quantized row: bfloat16 or float32 zero point, bfloat16 step."""


def row_bytes(width: int, bits: int, param_bytes: int = 6) -> int:
    """Bytes of one message on the wire, including its parameters.

    Args:
        width: Columns of the row.
        bits: One of `BITS`.
        param_bytes: 6 or 4; rows of 16 and 32 bits have no parameters.
    """
    return -(-width * bits // 8) + (param_bytes if bits < 16 else 0)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Messages of one bit width, contiguous in the buffer."""

    bits: int
    order: NDArray[np.int64]
    """Message numbers in memory order, int64 [k], ascending."""
    offset: int
    """First byte of the group."""
    row_bytes: int
    """Bytes of one row without parameters."""
    first_param: int
    """Offset of the first row among the quantized rows; rows of 16 and 32 bits have none."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the codes of this group."""
        return len(self.order) * self.row_bytes


class MessageLayout:
    """Layout of the buffer of one sender and receiver, built from the bit width of every message.

    Args:
        bits: Bit width of each message in send order, each one of `BITS`; [n].
        width: Columns D of a message.
        param_bytes: 6 (float32 zero point, bfloat16 step) or 4 (both bfloat16; meant for rows whose offset is
            small against their spread).

    Attributes:
        bits: Bit width of each message, uint8 [n].
        width: Columns of a message.
        param_bytes: Bytes of parameters for each quantized row.
        groups: One `Group` for each bit width that occurs, ascending.
        counts: Messages for each bit width that occurs.
        num_quantized: Rows of fewer than 16 bits.
        zeros_offset: First byte of the zero points.
        steps_offset: First byte of the steps.
        size_bytes: Bytes of the whole buffer.

    Raises:
        CodecError: A bit width is not in `BITS`, or width or param_bytes is invalid.
    """

    def __init__(
        self, bits: NDArray[Any] | Sequence[int] | bytes, width: int, *, param_bytes: int = 6
    ) -> None:
        if isinstance(bits, bytes):
            bits = np.frombuffer(bits, dtype=np.uint8)
        table = np.asarray(bits)
        _check(table, width, param_bytes)
        self.bits: NDArray[np.uint8] = table.astype(np.uint8)
        self.width, self.param_bytes = int(width), int(param_bytes)
        self.groups = tuple(self._groups())
        self.counts = {group.bits: len(group.order) for group in self.groups}
        self.num_quantized = sum(count for b, count in self.counts.items() if b < 16)
        self.zeros_offset = sum(group.size_bytes for group in self.groups)
        self.steps_offset = self.zeros_offset + (param_bytes - 2) * self.num_quantized
        self.size_bytes = self.zeros_offset + param_bytes * self.num_quantized
        self.device_tables: dict[Any, Any] = {}
        """Copies of the tables on accelerators, filled by the kernels that need them."""

    def _groups(self) -> list[Group]:
        groups, offset, quantized = [], 0, 0
        for b in BITS:
            order = np.flatnonzero(self.bits == b)
            if len(order):
                size = row_bytes(self.width, b, 0)
                groups.append(
                    Group(bits=b, order=order, offset=offset, row_bytes=size, first_param=quantized)
                )
                offset += groups[-1].size_bytes
                quantized += len(order)
        return groups

    @cached_property
    def row_offset(self) -> NDArray[np.int64]:
        """Byte offset of each message, int64 [n]."""
        offsets = np.zeros(len(self), dtype=np.int64)
        for group in self.groups:
            offsets[group.order] = group.offset + group.row_bytes * np.arange(len(group.order))
        return offsets

    @cached_property
    def param_slot(self) -> NDArray[np.int64]:
        """Index of each message among the quantized rows, int64 [n]; meaningless for 16 and 32 bits."""
        slots = np.zeros(len(self), dtype=np.int64)
        for group in self.groups:
            slots[group.order] = group.first_param + np.arange(len(group.order))
        return slots

    def __len__(self) -> int:
        return len(self.bits)

    def __repr__(self) -> str:
        mix = ", ".join(f"{count} x {b} bit" for b, count in self.counts.items()) or "no messages"
        size = f"{self.param_bytes} B of parameters; {self.size_bytes} B"
        return f"MessageLayout({mix}; width {self.width}, {size})"


def _check(table: NDArray[Any], width: int, param_bytes: int) -> None:
    if table.ndim != 1:
        raise CodecError(f"bits has shape {table.shape}, expected one width for each message: a 1-D array")
    if table.size and not np.issubdtype(table.dtype, np.integer):
        raise CodecError(f"bits has dtype {table.dtype}, expected integers out of {BITS}")
    wrong = np.flatnonzero(~np.isin(table, BITS))
    if len(wrong):
        raise CodecError(f"message {wrong[0]} has {table[wrong[0]]} bits, expected one of {BITS}")
    if width < 1:
        raise CodecError(f"messages have width {width}, expected at least one column")
    if param_bytes not in PARAM_BYTES:
        raise CodecError(
            f"param_bytes is {param_bytes}, expected 6 (float32 zero, bfloat16 step) or 4 (both bfloat16)"
        )
