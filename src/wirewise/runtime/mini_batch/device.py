"""Feature rows of a machine: those needed most on an accelerator, the others in host memory.

After SALIENT++ (Kaler et al., MLSys 2023): own rows are sorted by decreasing probability that a batch needs them, so
that the device keeps a prefix of them, beside cached rows of other machines.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.mini_batch.store import AssembledBatch, Decode, RowStore

__all__ = ["DeviceStore"]


class DeviceStore(RowStore):
    """`RowStore` whose batches are assembled on a device.

    Host rows are copied from pinned memory on a separate stream, overlapped with compute. A device "cpu" does the
    same without streams.

    Args:
        own: Rows of this machine in the order of their ids, float32 or float16 [n, F]; batches are float32.
        offsets: First id of each machine, then N; [K + 1].
        rank: Index of this machine.
        cached: Unique ids of other machines' rows kept on the device, [c].
        device: Device on which batches are assembled.
        prefix: Fraction of the own rows, the first ones, kept on the device.

    Raises:
        InputError: Rows or ids do not fit the machine, or the prefix is out of range or too large for the device.
    """

    def __init__(
        self,
        own: Float[Tensor, "n f"],
        offsets: NDArray[np.int64],
        rank: int,
        cached: NDArray[np.int64] | None = None,
        *,
        device: torch.device | str,
        prefix: float = 0.15,
    ) -> None:
        super().__init__(own, offsets, rank, cached)
        if not 0 <= prefix <= 1:
            raise InputError(f"prefix is {prefix}; expected the share of the own rows on the device, 0 to 1")
        self.device = torch.device(device)
        self.num_prefix = int(prefix * self.num_own)
        self._resident = self._on_device(torch.cat([own[: self.num_prefix], self.copies]))
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def fill(self, rows: Float[Tensor, "c f"]) -> None:
        """Store the rows of the cached ids, in order."""
        super().fill(rows)
        self._resident[self.num_prefix :].copy_(rows)

    def assemble(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], decode: Decode
    ) -> AssembledBatch:
        """Assemble a batch like `RowStore`; the rows are on the device once `copied` has completed."""
        slots = self._slots[ids]
        resident = (slots >= self.num_own) | ((slots >= 0) & (slots < self.num_prefix))
        there, here = np.flatnonzero(resident), np.flatnonzero(~resident)
        cached = slots[there] >= self.num_own
        kept = slots[there] - np.where(cached, self.num_own - self.num_prefix, 0)
        staged = torch.empty(len(here), self.num_features, pin_memory=self._stream is not None)
        self.copy(slots[here], staged)
        decode(staged, np.searchsorted(here, positions))
        if self._stream is None:
            return AssembledBatch(self._joined(len(ids), there, kept, here, staged))
        with torch.cuda.stream(self._stream):
            x, copied = self._joined(len(ids), there, kept, here, staged), torch.cuda.Event()
            copied.record(self._stream)
        return AssembledBatch(x, copied)

    def _joined(
        self,
        count: int,
        there: NDArray[np.int64],
        kept: NDArray[np.int32],
        here: NDArray[np.int64],
        staged: Tensor,
    ) -> Tensor:
        x = torch.empty(count, self.num_features, device=self.device)
        index, rows, others = (
            torch.from_numpy(part.astype(np.int64)).to(self.device, non_blocking=True)
            for part in (there, kept, here)
        )
        x[index] = self._resident[rows].float()
        x[others] = staged.to(self.device, non_blocking=True)
        return x

    def _on_device(self, rows: Tensor) -> Tensor:
        try:
            return rows.to(self.device, copy=True)
        except torch.OutOfMemoryError as cause:
            raise InputError(
                f"{rows.nbytes} bytes of {self.num_prefix} own and {len(self.cached)} cached rows do not fit on "
                f"{self.device}; choose a smaller prefix or cache"
            ) from cause
