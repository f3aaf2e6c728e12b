"""Feature rows held by a machine: its own, and copies of others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.mini_batch.kernels import copy_rows

__all__ = ["AssembledBatch", "Decode", "RowStore"]


_KEPT = (torch.float32, torch.float16)

Decode = Callable[[Tensor, NDArray[np.int64]], None]
"""Function that adds received rows to given positions of a matrix, whose rows are zero there."""


class AssembledBatch(NamedTuple):
    """Rows of a batch."""

    x: Float[Tensor, "n f"]
    copied: torch.cuda.Event | None = None
    """Event after the copies to a device."""


class RowStore:
    """Rows by global id, where machine k owns the ids `offsets[k]` to `offsets[k + 1]`.

    Args:
        own: Rows of this machine in the order of their ids, float32 or float16 [n, F]; batches are float32.
        offsets: First id of each machine, then N; [K + 1].
        rank: Index of this machine.
        cached: Unique ids of other machines' rows that are cached here, [c].

    Raises:
        InputError: Rows are not of this machine's range, or cached ids are its own.
    """

    def __init__(
        self,
        own: Float[Tensor, "n f"],
        offsets: NDArray[np.int64],
        rank: int,
        cached: NDArray[np.int64] | None = None,
    ) -> None:
        first, end = int(offsets[rank]), int(offsets[rank + 1])
        if own.dim() != 2 or len(own) != end - first or own.dtype not in _KEPT:
            raise InputError(
                f"machine {rank} was given rows {own.dtype} {tuple(own.shape)}; expected float32 or float16 of its "
                f"{end - first} nodes, [{end - first}, features]: features are missing for a part"
            )
        ids = np.empty(0, np.int64) if cached is None else np.asarray(cached, dtype=np.int64)
        foreign = (ids < first) | (ids >= end)
        if len(ids) and (ids.min() < 0 or ids.max() >= offsets[-1] or not foreign.all()):
            raise InputError(
                f"cached ids of machine {rank} are {ids.min()} to {ids.max()}, some its own; expected ids of other "
                f"machines from 0 to {offsets[-1] - 1}"
            )
        self.offsets, self.rank, self.first, self.cached = offsets, rank, first, ids
        self.own: Tensor = own
        """Rows that this machine owns, [n, F]; never copied, so that they may be a map of a file."""
        self.copies: Tensor = own.new_zeros(len(ids), own.shape[1])
        """Rows of the cached ids, [c, F]."""
        self._slots = np.full(int(offsets[-1]), -1, np.int32)
        self._slots[first:end] = np.arange(end - first)
        self._slots[ids] = np.arange(end - first, end - first + len(ids))

    device = torch.device("cpu")
    """Device on which batches are assembled."""

    @property
    def num_own(self) -> int:
        """Number of rows owned by this machine."""
        return len(self.own)

    @property
    def num_features(self) -> int:
        """Number of features, F."""
        return int(self.own.shape[1])

    def fill(self, rows: Float[Tensor, "c f"]) -> None:
        """Store the rows of the cached ids, in order."""
        self.copies.copy_(rows)

    def missing(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in `ids` of rows that are not held, by owner, then in order."""
        places = np.flatnonzero(self._slots[ids] < 0)
        owner = np.searchsorted(self.offsets, ids[places], side="right")
        return places[np.argsort(owner, kind="stable")]

    def count_foreign(self, ids: NDArray[np.int64]) -> int:
        """Number of ids owned by other machines."""
        return int(np.count_nonzero((ids < self.first) | (ids >= self.first + self.num_own)))

    def copy(self, slots: NDArray[np.int32], out: Float[Tensor, "n f"]) -> None:
        """Write the rows of some slots to `out`, float32; negative slots give zeros."""
        if self.own.dtype == torch.float32:
            copy_rows(slots, self.own.numpy(), self.copies.numpy(), out.numpy())
            return
        # The kernels know no halves: their bits are copied as integers.
        halves = torch.empty(out.shape, dtype=torch.float16)
        copy_rows(slots, *(part.view(torch.int16).numpy() for part in (self.own, self.copies, halves)))
        out.copy_(halves)

    def assemble(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], decode: Decode
    ) -> AssembledBatch:
        """Assemble the rows of a batch from held rows, and received ones for `positions`.

        Args:
            ids: Ids of the batch, [n].
            positions: Positions in `ids` of received rows, [w].
            decode: Function that adds received rows to given positions of a matrix.
        """
        x = torch.empty(len(ids), self.num_features)
        self.copy(self._slots[ids], x)
        decode(x, positions)
        return AssembledBatch(x)
