"""Exact wire formats of feature rows, and the choice of the smallest; needs no torch.

Bag-of-words rows are mostly zeros: a row of 1,000 columns with four ones takes 4,000 bytes as float32, 125 as bits
and 8 as the columns of its ones. All formats are lossless: rows with other values, including negative zero, are never
sent as bits or columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "FORMATS",
    "Census",
    "FormatName",
    "RowFormat",
    "count_dense",
    "exact_format",
    "smallest_format",
]

FormatName = Literal["dense", "bits", "ones", "sparse"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
"""Names of formats. dense: all values; bits: one bit per value, for rows of zeros and ones; ones: the columns of
the ones of such rows; sparse: columns and values of the nonzeros. The number of columns is not sent, as both ends
know it."""

_BLOCK_VALUES = 1 << 22


@dataclass(frozen=True)
class RowFormat:
    """Wire format of rows of a certain width."""

    name: FormatName
    width: int
    """Columns of a row, F."""
    value_bytes: int
    """Bytes of a value, 4 or 2."""

    @property
    def column_type(self) -> np.dtype[Any]:
        """Smallest unsigned integer type that holds every column index."""
        return np.min_scalar_type(max(self.width - 1, 0))

    def row_bytes(self, nonzeros: ArrayLike) -> NDArray[np.int64]:
        """Bytes of rows with the given numbers of nonzeros, [rows]."""
        counts = np.asarray(nonzeros, dtype=np.int64)
        if self.name == "dense":
            return np.full_like(counts, self.width * self.value_bytes)
        if self.name == "bits":
            return np.full_like(counts, -(-self.width // 8))
        return counts * (self.column_type.itemsize + (self.value_bytes if self.name == "sparse" else 0))


class Census(NamedTuple):
    """Counts from which the smallest format is chosen."""

    nonzeros: NDArray[np.int64]
    """Values of each row whose bits are not all zero, [rows]."""
    binary: bool
    """Whether all values are 0 or 1."""


def count_dense(rows: NDArray[Any]) -> Census:
    """Count the nonzeros of a dense matrix of float32 or float16, [rows, F]."""
    words = rows.view(np.dtype(f"i{rows.itemsize}"))
    one = np.ones(1, rows.dtype).view(words.dtype)[0]
    counts, binary = np.zeros(len(rows), np.int64), True
    step = max(_BLOCK_VALUES // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows), step):
        block = words[start : start + step]
        counts[start : start + step] = np.count_nonzero(block, axis=1)
        binary = binary and np.count_nonzero(block == one) == counts[start : start + step].sum()
    return Census(counts, bool(binary))


def smallest_format(
    total_rows: int, nonzeros: int, *, binary: bool, width: int, value_bytes: int
) -> RowFormat:
    """Format with the fewest total bytes; ties go to the first of `FORMATS`.

    Args:
        total_rows: Number of rows.
        nonzeros: Number of nonzeros in all rows together.
        binary: Whether all values are 0 or 1.
        width: Columns of a row.
        value_bytes: Bytes of a value.
    """
    possible = [
        RowFormat(name, width, value_bytes) for name in FORMATS if binary or name in ("dense", "sparse")
    ]
    mean = nonzeros / max(total_rows, 1)

    def size(one: RowFormat) -> float:
        fixed = one.name in ("dense", "bits")
        return float(one.row_bytes(0) if fixed else mean * int(one.row_bytes(1)))

    return min(possible, key=size)


class SparseMatrix(Protocol):
    """Sparse rows in CSR form, such as `graph.SparseRows`."""

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Offset of each row's first value, then the number of values, [rows + 1]."""

    @property
    def data(self) -> NDArray[np.float32] | None:
        """Values. None if all are one."""

    @property
    def num_columns(self) -> int:
        """Number of columns of a row, F."""


def exact_format(x: NDArray[Any] | SparseMatrix) -> tuple[RowFormat, float]:
    """Smallest format for all rows of a matrix, and its mean bytes per row.

    Args:
        x: Rows, float32 or float16 [rows, F], or sparse rows, whose stored values all count as nonzeros.
    """
    if isinstance(x, np.ndarray):
        census, width, value_bytes = count_dense(x), x.shape[1], x.itemsize
    else:
        binary = x.data is None or bool(np.all(x.data == 1))
        census, width, value_bytes = Census(np.diff(x.indptr), binary), x.num_columns, 4
    total, nonzeros = len(census.nonzeros), int(census.nonzeros.sum())
    found = smallest_format(total, nonzeros, binary=census.binary, width=width, value_bytes=value_bytes)
    return found, float(found.row_bytes(census.nonzeros).mean()) if total else 0.0
