"""Received rows, decoded where they are needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from wirewise import codec
from wirewise.graph import ops
from wirewise.runtime.full_graph.clock import PhaseClock

__all__ = ["ReceivedRows"]


@dataclass
class ReceivedRows:
    """Rows of one peer in wire format."""

    peer: int
    buffer: Tensor
    layout: codec.MessageLayout | None
    """Layout of the message; None if the buffer holds the rows themselves (all fp32, or float64)."""
    positions: Tensor | None
    """Positions in the peer's full list, when only a sample was sent."""
    scale: float
    clock: PhaseClock

    def rows(self, count: int, width: int, dtype: torch.dtype) -> Float[Tensor, "n d"]:
        """Decode the rows, [count, width]; rows that were not sampled are zero."""
        if self.layout is None:
            rows = self.buffer.view(dtype).view(-1, width)
        else:
            rows = torch.empty(len(self.layout.bits), width, dtype=dtype, device=self.buffer.device)
            codec.unpack(self.buffer, self.layout, rows)
        if self.positions is None:
            return rows
        full = rows.new_zeros(count, width)
        full[self.positions] = rows * self.scale
        return full

    def write(self, out: Float[Tensor, "n d"]) -> None:
        """Decode into `out`, [n, width]."""
        with self.clock.phase("unpack"):
            if self.layout is not None and self.positions is None:
                codec.unpack(self.buffer, self.layout, out)
            else:
                out.copy_(self.rows(len(out), out.shape[1], out.dtype))

    def add(self, index: Tensor, out: Float[Tensor, "m d"]) -> None:
        """Add row i to `out[index[i]]`; indices are unique."""
        with self.clock.phase("unpack"):
            if self.layout is not None and self.positions is None:
                codec.unpack_add(self.buffer, self.layout, index, out)
            else:
                out.index_add_(0, index, self.rows(len(index), out.shape[1], out.dtype))

    def aggregate(self, csr: ops.Csr, out: Float[Tensor, "m d"]) -> None:
        """Add `csr @ rows` to `out`; quantized rows are decoded on the fly and never stored."""
        with self.clock.phase("unpack"):
            if self.layout is not None and self.positions is None:
                codec.unpack_aggregate(self.buffer, self.layout, csr.indptr, csr.indices, csr.weight, out)
            else:
                rows = self.rows(csr.num_columns, out.shape[1], out.dtype)
                ops.aggregate_into(csr, rows, out, accumulate=True)
