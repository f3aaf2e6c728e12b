"""Wire format of feature rows: the smallest exact one, or quantized if that is smaller."""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from wirewise.codec.layout import MessageLayout, row_bytes
from wirewise.codec.quantize import pack, unpack_add
from wirewise.codec.row_formats import RowFormat, count_dense, smallest_format
from wirewise.errors import InputError
from wirewise.runtime.mini_batch.store import RowStore
from wirewise.runtime.transport import Transport

__all__ = ["ROW_FORMATS", "WIRE_BITS", "RowEncoding", "agree_encodings"]

WIRE_BITS = (8, 16, 32)
"""Bits of a value on the wire: 8 quantized by row; 16 bfloat16, or float16 where the store keeps halves; 32 float32."""

RowFormats = Literal["smallest", "dense"]
ROW_FORMATS: tuple[RowFormats, ...] = get_args(RowFormats)
"""Names of row formats. smallest: exact rows are sent in the smallest of `codec.row_formats.FORMATS`; dense: with all
their values."""

_COUNTED = "the numbers of values that are not zero"


class RowEncoding(Protocol):
    """Encoding of all machines' rows to bytes and back."""

    name: str
    """One of `codec.row_formats.FORMATS`, or "int8" or "bfloat16"."""
    mean_bytes: float
    """Mean bytes of a row, over all nodes."""

    def size_bytes(self, nodes: NDArray[np.int64]) -> int:
        """Bytes of the rows of some nodes, by global id."""

    def encode(self, positions: NDArray[np.int64], key: int, out: UInt8[Tensor, " bytes"]) -> None:
        """Encode some own rows, by local index; `key` is that of stochastic rounding."""

    def decode(
        self,
        received: UInt8[Tensor, " bytes"],
        nodes: NDArray[np.int64],
        index: Tensor,
        out: Float[Tensor, "n f"],
    ) -> None:
        """Decode received rows of `nodes` into the zeroed rows `index` of `out`."""


def agree_encodings(
    store: RowStore, transport: Transport, bits: int | None, formats: str
) -> tuple[RowEncoding, RowEncoding]:
    """Agree on the encodings of plain rows and of batch rows; a collective call of all machines.

    Args:
        store: Rows of this machine.
        transport: Transport between the machines, which count their nonzero values and exchange the counts.
        bits: One of `WIRE_BITS`, at most those of the store. Defaults to unquantized rows. Fewer bits than the
            store's are used only if they take fewer bytes than exact rows.
        formats: One of `ROW_FORMATS`.

    Raises:
        InputError: The bits or formats are unknown.
        PeerError: A machine is gone.
    """
    value_bits = 8 * store.own.element_size()
    possible = [one for one in WIRE_BITS if one <= value_bits]
    if bits is not None and bits not in possible:
        raise InputError(
            f"rows of {store.own.dtype} travel with {bits} bits a value; expected one of {possible}"
        )
    if formats not in ROW_FORMATS:
        raise InputError(f"row formats are {formats!r}; expected one of: {', '.join(ROW_FORMATS)}")
    exact = _Dense(store) if formats == "dense" else _smallest(store, transport)
    if bits in (None, value_bits) or row_bytes(store.num_features, bits) >= exact.mean_bytes:
        return exact, exact
    return exact, _Quantized(store, bits)


def _smallest(store: RowStore, transport: Transport) -> RowEncoding:
    """The smallest exact format of the rows of all machines."""
    own, width, value_bytes = store.own.numpy(), store.num_features, store.own.element_size()
    census = count_dense(own)
    nonzeros, other = transport.total([census.nonzeros.sum(), not census.binary], _COUNTED).tolist()
    total = int(store.offsets[-1])
    found = smallest_format(total, int(nonzeros), binary=not other, width=width, value_bytes=value_bytes)
    if found.name == "dense":
        return _Dense(store)
    if found.name == "bits":
        return _Bits(store)
    return _Listed(store, found, _gathered(store, census.nonzeros, transport))


def _gathered(store: RowStore, own: NDArray[np.int64], transport: Transport) -> NDArray[Any]:
    """Values of every node's row that are not zero, [N]."""
    sizes = np.diff(store.offsets)
    padded = np.zeros(int(sizes.max()), np.min_scalar_type(store.num_features))
    padded[: len(own)] = own
    parts = transport.all_gather(torch.from_numpy(padded.view(np.uint8)), _COUNTED)
    return np.concatenate(
        [part.numpy().view(padded.dtype)[:size] for part, size in zip(parts, sizes, strict=True)]
    )


class _Dense:
    """All values of a row, as the store keeps them."""

    name = "dense"

    def __init__(self, store: RowStore) -> None:
        self._own, self._width = store.own, store.num_features
        self._row_bytes = store.num_features * store.own.element_size()
        self.mean_bytes = float(self._row_bytes)

    def size_bytes(self, nodes: NDArray[np.int64]) -> int:
        return self._row_bytes * len(nodes)

    def encode(self, positions: NDArray[np.int64], key: int, out: Tensor) -> None:
        rows = out.view(self._own.dtype).view(len(positions), self._width)
        torch.index_select(self._own, 0, torch.from_numpy(positions), out=rows)

    def decode(self, received: Tensor, nodes: NDArray[np.int64], index: Tensor, out: Tensor) -> None:
        out.index_copy_(0, index, received.view(self._own.dtype).view(len(nodes), self._width).float())


class _Bits:
    """A bit a value, of rows of zeros and ones."""

    name = "bits"

    def __init__(self, store: RowStore) -> None:
        self._width = store.num_features
        self._own = np.packbits(store.own.numpy().astype(bool), axis=1)
        self.mean_bytes = float(self._own.shape[1])

    def size_bytes(self, nodes: NDArray[np.int64]) -> int:
        return self._own.shape[1] * len(nodes)

    def encode(self, positions: NDArray[np.int64], key: int, out: Tensor) -> None:
        np.take(self._own, positions, axis=0, out=out.numpy().reshape(len(positions), -1))

    def decode(self, received: Tensor, nodes: NDArray[np.int64], index: Tensor, out: Tensor) -> None:
        bits = np.unpackbits(received.numpy().reshape(len(nodes), -1), axis=1, count=self._width)
        out.index_copy_(0, index, torch.from_numpy(bits).float())


class _Listed:
    """Columns of what is not zero, row after row, and then the values unless all are one.

    Args:
        store: Rows of this machine.
        form: "ones" or "sparse".
        counts: Values of every node's row that are not zero, [N].
    """

    def __init__(self, store: RowStore, form: RowFormat, counts: NDArray[Any]) -> None:
        self.name: str = form.name
        self._form, self._counts = form, counts
        self.mean_bytes = float(form.row_bytes(counts).mean())
        own = store.own.numpy()
        # Bits, not values, say what is zero: negative zero is not.
        rows, columns = np.nonzero(own.view(np.dtype(f"i{own.itemsize}")))
        self._columns = columns.astype(form.column_type)
        self._values = own[rows, columns] if form.name == "sparse" else None
        self._starts = np.concatenate([[0], np.cumsum(counts[store.first :][: len(own)], dtype=np.int64)])

    def size_bytes(self, nodes: NDArray[np.int64]) -> int:
        return int(self._form.row_bytes(self._counts[nodes]).sum())

    def encode(self, positions: NDArray[np.int64], key: int, out: Tensor) -> None:
        begins, counts = self._starts[positions], self._starts[positions + 1] - self._starts[positions]
        ends = np.cumsum(counts)
        at = np.repeat(begins - (ends - counts), counts) + np.arange(counts.sum())
        columns, values = self._split(out.numpy(), len(at))
        columns[:] = self._columns[at]
        if self._values is not None:
            values[:] = self._values[at]

    def decode(self, received: Tensor, nodes: NDArray[np.int64], index: Tensor, out: Tensor) -> None:
        counts = self._counts[nodes].astype(np.int64)
        columns, values = self._split(received.numpy(), int(counts.sum()))
        out.numpy()[np.repeat(index.numpy(), counts), columns] = 1 if self._values is None else values

    def _split(self, message: NDArray[np.uint8], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Columns and values of a message; no values where all are one."""
        cut = count * self._form.column_type.itemsize
        columns, rest = message[:cut].view(self._form.column_type), message[cut:]
        return columns, rest if self._values is None else rest.view(self._values.dtype)


class _Quantized:
    """Values of 8 bits with a scale for each row, or of bfloat16."""

    def __init__(self, store: RowStore, bits: int) -> None:
        self.name = "int8" if bits == 8 else "bfloat16"
        self._own, self._first, self._width, self._bits = store.own, store.first, store.num_features, bits
        self.mean_bytes = float(row_bytes(self._width, bits))

    def size_bytes(self, nodes: NDArray[np.int64]) -> int:
        return self._layout(len(nodes)).size_bytes

    def encode(self, positions: NDArray[np.int64], key: int, out: Tensor) -> None:
        own, index = self._own, torch.from_numpy(positions)
        if own.dtype != torch.float32:
            own, index = own[index].float(), torch.arange(len(positions))
        pack(own, index, self._layout(len(positions)), out, key=key, rows=positions + self._first)

    def decode(self, received: Tensor, nodes: NDArray[np.int64], index: Tensor, out: Tensor) -> None:
        unpack_add(received, self._layout(len(nodes)), index, out)

    def _layout(self, count: int) -> MessageLayout:
        return MessageLayout(np.full(count, self._bits, np.uint8), self._width)
