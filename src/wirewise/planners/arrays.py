"""Array types used by planners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ints", "Vector"]

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
