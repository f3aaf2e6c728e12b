"""Collectives of flat buffers, of a whole process group or of some of its ranks, with the bytes that leave a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wirewise.runtime.transport import Transport

__all__ = ["Exchanges"]


class Exchanges:
    """Collectives that wait; all ranks call them in one order.

    Args:
        transport: Transport between the ranks.
        what: Whose gradients, for messages.
    """

    def __init__(self, transport: Transport, what: str) -> None:
        self.transport, self.what = transport, what
        self.sent_bytes = 0
        """What left this rank so far: of an all-reduce as by a ring."""

    def all_reduce(self, flat: Tensor) -> None:
        """Sum over the ranks in place, [elements]."""
        ranks = self.transport.world_size
        staged = self._staged(flat)
        if ranks > 1:
            self._wait("all-reduce", self.transport.group.allreduce, [staged])
        if staged is not flat:
            flat.copy_(staged)
        self.sent_bytes += 2 * (ranks - 1) * flat.nbytes // ranks

    def all_gather(self, own: Tensor) -> Tensor:
        """uint8 [bytes], as many on all ranks -> [ranks, bytes]."""
        ranks = self.transport.world_size
        staged = self._staged(own)
        rows = staged.new_empty(ranks * own.numel())
        if ranks > 1:
            self._wait("all-gather", self.transport.group._allgather_base, rows, staged)
        else:
            rows.copy_(staged)
        self.sent_bytes += (ranks - 1) * own.nbytes
        return rows.view(ranks, -1).to(own.device)

    def all_to_all(self, parts: Mapping[int, Tensor], sizes: Mapping[int, int]) -> dict[int, Tensor]:
        """Send each rank its part; all ranks take part, also with nothing to send.

        Args:
            parts: uint8 [bytes], by rank.
            sizes: Bytes that come, by rank.

        Returns:
            uint8 [bytes] by rank, for the ranks in `sizes`.
        """
        ranks, own = range(self.transport.world_size), self.transport.rank
        device = next(iter(parts.values())).device
        together = self._staged(torch.cat([parts[rank] for rank in sorted(parts)]))
        came = together.new_empty(sum(sizes.values()))
        out = [parts[rank].numel() if rank in parts else 0 for rank in ranks]
        into = [sizes.get(rank, 0) for rank in ranks]
        if len(ranks) > 1:
            self._wait("all-to-all", self.transport.group.alltoall_base, came, together, into, out)
        else:
            came.copy_(together)
        self.sent_bytes += sum(out) - out[own]
        rows = came.to(device).split(into)
        return {rank: rows[rank] for rank in sizes}

    def _staged(self, tensor: Tensor) -> Tensor:
        """The tensor on the side that the process group reads."""
        if tensor.is_cuda == self.transport.on_device:
            return tensor
        return tensor.cuda() if self.transport.on_device else tensor.cpu()

    def _wait(self, name: str, collective: Any, *args: Any) -> None:
        what, started = f"the {name} of {self.what}", []
        self.transport.guard(lambda: started.append(collective(*args)), what)
        self.transport.wait_for(started[0], what)
