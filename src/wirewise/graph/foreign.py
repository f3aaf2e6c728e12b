"""Tensors and arrays of other libraries as NumPy arrays; the libraries are not imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError

__all__ = ["is_sparse", "to_numpy"]


def to_numpy(value: Any) -> NDArray[Any]:
    """A tensor (dense or sparse, on any device, of a subclass such as PyG's EdgeIndex) or an array as a NumPy array.

    Raises:
        GraphError: NumPy has no such type of numbers.
    """
    if hasattr(value, "as_tensor"):
        # EdgeIndex and Index of PyG: their to_dense() is the adjacency matrix, not the numbers they hold.
        value = value.as_tensor()
    if is_sparse(value):
        value = value.to_dense()
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu().numpy()
        except TypeError as error:
            raise GraphError(
                f"the Data object holds a tensor of {value.dtype}, which NumPy does not know; expected another type of "
                "number: convert it, bfloat16 by .float()"
            ) from error
    return np.asarray(value)


def is_sparse(value: Any) -> bool:
    """Whether a tensor is stored by the places of its values, such as an adjacency matrix in COO or CSR form."""
    return "sparse" in str(getattr(value, "layout", ""))
