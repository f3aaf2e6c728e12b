"""How feature rows travel: packed by the codec, or halves as the store keeps them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from wirewise.codec.layout import MessageLayout
from wirewise.codec.quantize import pack, unpack_add
from wirewise.errors import InputError

__all__ = ["WIRE_BITS", "Wire", "exact_bits", "wire_of"]

WIRE_BITS = (8, 16, 32)
"""Bits of a value on the wire: 8 quantized by row; 16 bfloat16, or float16 where the store keeps halves; 32 float32."""


class Wire(Protocol):
    """Rows to bytes and back."""

    def size_bytes(self, count: int) -> int:
        """Bytes of so many rows."""

    def encode(
        self, own: Tensor, places: NDArray[np.int64], first: int, key: int, out: UInt8[Tensor, " bytes"]
    ) -> None:
        """Write some rows of a machine whose first row is node `first`; `key` is that of stochastic rounding."""

    def decode(
        self, came: UInt8[Tensor, " bytes"], index: Tensor, count: int, out: Float[Tensor, "n f"]
    ) -> None:
        """Set the rows `index` of `out`, which are zero, to the rows that came."""


def exact_bits(dtype: torch.dtype) -> int:
    """Bits at which rows of a store arrive as they are."""
    return 16 if dtype == torch.float16 else 32


def wire_of(dtype: torch.dtype, width: int, bits: int) -> Wire:
    """How rows of a store travel.

    Args:
        dtype: Type of the store, float32 or float16.
        width: Values of a row.
        bits: One of `WIRE_BITS`, at most those of the store.

    Raises:
        InputError: Other bits.
    """
    possible = [one for one in WIRE_BITS if one <= exact_bits(dtype)]
    if bits not in possible:
        raise InputError(f"rows of {dtype} travel with {bits} bits a value; expected one of {possible}")
    return _Halves(width) if dtype == torch.float16 and bits == 16 else _Packed(width, bits)


class _Packed:
    def __init__(self, width: int, bits: int) -> None:
        self._width, self._bits = width, bits

    def size_bytes(self, count: int) -> int:
        return self._layout(count).size_bytes

    def encode(self, own: Tensor, places: NDArray[np.int64], first: int, key: int, out: Tensor) -> None:
        index = torch.from_numpy(places)
        if own.dtype != torch.float32:
            own, index = own[index].float(), torch.arange(len(places))
        pack(own, index, self._layout(len(places)), out, key=key, rows=places + first)

    def decode(self, came: Tensor, index: Tensor, count: int, out: Tensor) -> None:
        unpack_add(came, self._layout(count), index, out)

    def _layout(self, count: int) -> MessageLayout:
        return MessageLayout(np.full(count, self._bits, np.uint8), self._width)


class _Halves:
    def __init__(self, width: int) -> None:
        self._width = width

    def size_bytes(self, count: int) -> int:
        return 2 * self._width * count

    def encode(self, own: Tensor, places: NDArray[np.int64], first: int, key: int, out: Tensor) -> None:
        out.copy_(own[torch.from_numpy(places)].view(torch.uint8).view(-1))

    def decode(self, came: Tensor, index: Tensor, count: int, out: Tensor) -> None:
        out.index_copy_(0, index, came.view(torch.float16).view(count, self._width).float())
