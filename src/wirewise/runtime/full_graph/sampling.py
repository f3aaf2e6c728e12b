"""Sending a random share of the boundary in every epoch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wirewise import rng
from wirewise.runtime.full_graph.route import Route

__all__ = ["BoundarySampler"]


class BoundarySampler:
    """Draws the rows of each boundary list that travel in an epoch.

    Owner and holder of a row draw the same without talking. This is the boundary node sampling of BNS-GCN.

    Args:
        route: The full lists.
        rate: Share of each list that travels, in (0, 1]; at 1 nothing is drawn.
        rank: Number of this rank.
        seed: Keys the draws, together with the epoch and the two ranks.
        device: Where the positions are needed.
    """

    def __init__(self, route: Route, rate: float, *, rank: int, seed: int, device: torch.device) -> None:
        self.route, self.rate = route, rate
        self.rank, self.seed, self.device = rank, seed, device
        self.scale = 1.0 / rate
        """What a sampled row is multiplied with, so that sums over the boundary keep their expectation."""

    def draw(self, epoch: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Positions sent to and received from each peer, ascending int64; no entries where whole lists travel."""
        if self.rate >= 1.0:
            return {}, {}
        route = self.route
        sends = {
            p: self._positions(epoch, p, len(rows), route.owner_sends) for p, rows in route.send_rows.items()
        }
        receives = {
            p: self._positions(epoch, p, count, not route.owner_sends)
            for p, count in route.receive_counts.items()
        }
        return sends, receives

    def _positions(self, epoch: int, peer: int, count: int, own: bool) -> Tensor:
        owner, holder = (self.rank, peer) if own else (peer, self.rank)
        key = rng.stream_key(self.seed, epoch, 0xB0, owner, holder)
        order = np.argsort(rng.uniform16(key, np.arange(count), 1)[:, 0], kind="stable")
        return torch.from_numpy(np.sort(order[: round(self.rate * count)])).to(self.device)
