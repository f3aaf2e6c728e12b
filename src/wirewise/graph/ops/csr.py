"""CSR matrices as tensors, with cached row blocks and transposes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import GraphError, InputError

__all__ = ["Csr"]


class Csr:
    """Weighted sparse matrix in CSR form: in-neighbours of nodes, or nonzero features of nodes.

    A row block shares the arrays of its matrix, so its `indptr` need not start at 0: row r holds the entries
    `indptr[r]` to `indptr[r + 1]` of `indices` and `weight`. Columns ascend inside a row.

    Args:
        indptr: Offsets of the rows, int64 [num_rows + 1], ascending.
        indices: Column of each entry, int32 [num_entries].
        weight: Weight of each entry, float32 or float64 [num_entries]. Defaults to all ones.
        num_columns: Number of columns.

    Raises:
        GraphError: The arrays do not describe such a matrix.
    """

    def __init__(
        self,
        indptr: Int[Tensor, " rows_plus_1"] | NDArray[Any],
        indices: Int[Tensor, " entries"] | NDArray[Any],
        weight: Float[Tensor, " entries"] | NDArray[Any] | None = None,
        *,
        num_columns: int,
    ) -> None:
        self.indptr = _tensor(indptr, torch.int64)
        self.indices = _tensor(indices, torch.int32)
        self.weight = torch.ones(len(self.indices)) if weight is None else _tensor(weight)
        self.weight = self.weight.to(self.indices.device)
        self.num_columns = num_columns
        _check(self.indptr, self.indices, self.weight, num_columns)
        if not _ascending(self.indptr, self.indices):
            matrix = self.to_scipy()
            matrix.sort_indices()
            device = self.indices.device
            self.indptr = _tensor(matrix.indptr, torch.int64).to(device)
            self.indices = _tensor(matrix.indices, torch.int32).to(device)
            self.weight = _tensor(matrix.data).to(device)
        self._cache: dict[Any, Any] = {}

    @classmethod
    def _share(cls, indptr: Tensor, indices: Tensor, weight: Tensor, num_columns: int) -> Csr:
        """A matrix of arrays that are known to be sound."""
        made = cls.__new__(cls)
        made.indptr, made.indices, made.weight, made.num_columns = indptr, indices, weight, num_columns
        made._cache = {}
        return made

    @classmethod
    def from_scipy(cls, matrix: Any, *, device: torch.device | str = "cpu") -> Csr:
        """Convert a SciPy sparse matrix of float32 or float64."""
        matrix = matrix.tocsr()
        return cls(matrix.indptr, matrix.indices, matrix.data, num_columns=matrix.shape[1]).to(device)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def num_entries(self) -> int:
        """Number of stored entries of these rows."""
        return int(self.indptr[-1] - self.indptr[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.num_rows, self.num_columns

    @property
    def device(self) -> torch.device:
        """Device of the arrays."""
        return self.indices.device

    def __repr__(self) -> str:
        return f"Csr({self.num_rows} x {self.num_columns}, {self.num_entries} entries, {self.device})"

    def rows(self, low: int, high: int) -> Csr:
        """Row block from low to high, sharing the arrays; cached, so that its transpose is computed once."""
        if not 0 <= low <= high <= self.num_rows:
            raise InputError(f"got rows {low} to {high}; expected a range inside 0 to {self.num_rows}")
        if (low, high) == (0, self.num_rows):
            return self
        key = ("rows", low, high)
        if key not in self._cache:
            self._cache[key] = Csr._share(
                self.indptr[low : high + 1], self.indices, self.weight, self.num_columns
            )
        return self._cache[key]

    @property
    def transposed(self) -> Csr:
        """Transpose, computed once; entries of a row ascend by their original row."""
        if "transposed" not in self._cache:
            self._cache["transposed"] = Csr.from_scipy(self.to_scipy().tocsc().T, device=self.device)
        return self._cache["transposed"]

    def to(self, device: torch.device | str) -> Csr:
        """Copy of the matrix on another device."""
        if torch.device(device) == self.device:
            return self
        return Csr._share(
            self.indptr.to(device), self.indices.to(device), self.weight.to(device), self.num_columns
        )

    def to_scipy(self) -> sp.csr_matrix:
        """SciPy matrix on the CPU."""
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        indptr = (self.indptr - first).cpu().numpy()
        indices = self.indices[first:last].cpu().numpy()
        return sp.csr_matrix((self.weight[first:last].cpu().numpy(), indices, indptr), shape=self.shape)

    def weight_as(self, dtype: torch.dtype) -> Float[Tensor, " entries"]:
        """Weights in the given dtype; converted once."""
        if self.weight.dtype == dtype:
            return self.weight
        if dtype not in self._cache:
            self._cache[dtype] = self.weight.to(dtype)
        return self._cache[dtype]

    def arrays(self, dtype: torch.dtype) -> tuple[NDArray[Any], ...]:
        """Arrays for the CPU kernels: start and end of each row, columns, weights."""
        indptr = self.indptr.numpy()
        return indptr[:-1], indptr[1:], self.indices.numpy(), self.weight_as(dtype).numpy()

    def sparse_tensor(self, dtype: torch.dtype) -> Tensor:
        """Sparse CSR tensor of torch; built once."""
        key = ("sparse", dtype)
        if key not in self._cache:
            first, last = int(self.indptr[0]), int(self.indptr[-1])
            with warnings.catch_warnings():
                # torch announces once a process that the layout is beta, and 2.11 that it checks nothing, as told.
                for announced in ("[Ss]parse CSR tensor support", "Sparse invariant checks are implicitly"):
                    warnings.filterwarnings("ignore", message=f".*{announced}.*")
                self._cache[key] = torch.sparse_csr_tensor(
                    self.indptr - first,
                    self.indices[first:last].long(),
                    self.weight_as(dtype)[first:last],
                    size=self.shape,
                    check_invariants=False,
                )
        return self._cache[key]


def _tensor(array: Any, dtype: torch.dtype | None = None) -> Tensor:
    if not isinstance(array, Tensor):
        array = np.ascontiguousarray(array)
        # Memory-mapped parts are read-only, and torch has no read-only tensors.
        array = torch.from_numpy(array if array.flags.writeable else array.copy())
    return array.detach().to(dtype or array.dtype).contiguous()


def _check(indptr: Tensor, indices: Tensor, weight: Tensor, num_columns: int) -> None:
    if indptr.ndim != 1 or indices.ndim != 1 or len(indptr) == 0:
        raise GraphError(
            f"got indptr of shape {tuple(indptr.shape)} and indices of shape {tuple(indices.shape)}; "
            "expected [num_rows + 1] and [num_entries]"
        )
    if weight.shape != indices.shape or weight.dtype not in (torch.float32, torch.float64):
        raise GraphError(
            f"got weight {weight.dtype} {tuple(weight.shape)} for {len(indices)} entries; "
            "expected one float32 or float64 weight an entry, or None for all ones"
        )
    steps = indptr.diff()
    if bool((steps < 0).any()) or int(indptr[0]) < 0 or int(indptr[-1]) > len(indices):
        raise GraphError(
            f"indptr runs from {int(indptr[0])} to {int(indptr[-1])} over {len(indices)} entries; expected "
            "an ascending array inside 0 to the number of entries"
        )
    if len(indices) and not (0 <= int(indices.min()) and int(indices.max()) < num_columns):
        raise GraphError(
            f"got columns {int(indices.min())} to {int(indices.max())}; expected 0 to {num_columns - 1}: an "
            "edge names a node that is neither own nor halo"
        )


def _ascending(indptr: Tensor, indices: Tensor) -> bool:
    falls = indices.diff() < 0
    starts = indptr[1:-1]
    starts = starts[(starts > 0) & (starts < len(indices))] - 1
    falls[starts] = False
    first, last = int(indptr[0]), int(indptr[-1])
    return not bool(falls[first : max(first, last - 1)].any())
