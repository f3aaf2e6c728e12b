"""Mean of gradients independent of the number of processes: all shares are summed in a fixed order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wirewise.runtime.recovery.batches import shares_of
from wirewise.runtime.transport import Transport

__all__ = ["OrderedFold"]


class OrderedFold:
    """Gradients of all shares, gathered from all processes and summed from the first share to the last.

    A ring sums in an order that depends on the number of ranks, and so do its bits. This sends each gradient to all
    processes, shares / 2 times the bytes of an all-reduce.

    Args:
        model: Model with the gradients.
        shares: Number of shares.
        transport: Transport between the processes.
    """

    def __init__(self, model: nn.Module, shares: int, transport: Transport) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._shares, self._transport = shares, transport
        self._sizes = [p.numel() for p in self._parameters]
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Take the gradients of one share from the model, with flags of those present."""
        parts = [
            torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1).float() for p in self._parameters
        ]
        there = torch.tensor([float(p.grad is not None) for p in self._parameters])
        self._kept.append(torch.cat([*parts, there]))
        for p in self._parameters:
            p.grad = None

    @torch.no_grad()
    def fold(self) -> None:
        """Set the model's gradients to the mean over all shares; a parameter unused in every share gets none.

        Raises:
            PeerError: A peer is gone.
        """
        processes = self._transport.world_size
        most = max(len(shares_of(place, processes, self._shares)) for place in range(processes))
        mine = torch.stack(self._kept + [torch.zeros_like(self._kept[0])] * (most - len(self._kept)))
        self._kept = []
        found = self._transport.all_gather(mine, "the gradients of all shares")
        rows = [
            found[place][number]
            for place in range(processes)
            for number in range(len(shares_of(place, processes, self._shares)))
        ]
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        flags = total[sum(self._sizes) :].tolist()
        total /= self._shares
        parts = total[: sum(self._sizes)].split(self._sizes)
        for p, part, used in zip(self._parameters, parts, flags, strict=True):
            p.grad = part.view(p.shape).to(p.dtype) if used else None
