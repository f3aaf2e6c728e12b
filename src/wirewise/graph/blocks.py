"""Iterate over large arrays in ranges, so that little of them is in memory at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "blocks", "row_blocks"]

CHUNK = 1 << 18
"""Edges or values of features that are in memory together."""


def blocks(count: int, width: int = 1) -> Iterator[tuple[int, int]]:
    """Ranges of rows of `width` values that contain about `CHUNK` values each."""
    step = max(CHUNK // max(width, 1), 1)
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def row_blocks(indptr: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that contain about `CHUNK` entries each."""
    begin, last = 0, len(indptr) - 1
    while begin < last:
        end = int(np.searchsorted(indptr, indptr[begin] + CHUNK, side="right")) - 1
        end = min(max(end, begin + 1), last, begin + CHUNK)
        yield begin, end
        begin = end
