"""Compiled copies of stored rows into a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit

__all__ = ["copy_rows"]


@njit()
def copy_rows(slots: NDArray[np.int32], own: NDArray[Any], cached: NDArray[Any], out: NDArray[Any]) -> None:
    """Set `out[i]` to row `slots[i]` of `own` followed by `cached`, or to zero if the slot is negative."""
    for place in range(len(slots)):
        slot = slots[place]
        if slot < 0:
            out[place] = 0
        elif slot < len(own):
            out[place] = own[slot]
        else:
            out[place] = cached[slot - len(own)]
