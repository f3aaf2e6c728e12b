"""Convert tensors and arrays of other libraries to NumPy arrays; the libraries are not imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.memory import available_bytes

__all__ = ["is_sparse", "to_numpy"]


def to_numpy(value: Any) -> NDArray[Any]:
    """Convert a tensor (dense or sparse, any device, or a subclass such as PyG's EdgeIndex) or an array to NumPy.

    Raises:
        GraphError: NumPy has no such dtype, or the dense form of a sparse tensor would exceed memory.
    """
    if hasattr(value, "as_tensor"):
        # EdgeIndex and Index of PyG: their to_dense() is the adjacency matrix, not the numbers they hold.
        value = value.as_tensor()
    if is_sparse(value):
        dense_bytes = value.numel() * value.element_size()
        if dense_bytes > available_bytes():
            raise GraphError(
                f"the Data object holds a sparse tensor of shape {list(value.shape)}, {dense_bytes / 1e9:.3g} GB when "
                "it is dense; expected one that fits into memory"
            )
        value = value.to_dense()
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise GraphError(
                f"the Data object holds a tensor of {value.dtype} that NumPy does not take "
                f"({str(error).splitlines()[0][:100]}); expected another type of number: convert it, bfloat16 by "
                ".float()"
            ) from error
    return np.asarray(value)


def is_sparse(value: Any) -> bool:
    """Whether a tensor is sparse, such as an adjacency matrix in COO or CSR form."""
    return "sparse" in str(getattr(value, "layout", ""))
