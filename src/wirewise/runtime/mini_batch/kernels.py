"""Rows of the store into a batch, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["copy_held"]


@numba.njit(nogil=True, cache=True)
def copy_held(slots: NDArray[np.int32], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Set `out[i]` to `rows[slots[i]]`, or to zero where the slot is negative."""
    for place in range(len(slots)):
        slot = slots[place]
        if slot >= 0:
            out[place] = rows[slot]
        else:
            out[place] = 0
