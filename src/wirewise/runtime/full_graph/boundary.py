"""Which boundary rows travel in an epoch: those of a route, a random share of them, or the blocks that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wirewise import rng

__all__ = ["BlockSkipper", "BoundarySampler", "Route"]


@dataclass(frozen=True)
class Route:
    """Rows that one rank exchanges with its peers in one direction."""

    send_rows: Mapping[int, Tensor]
    """Row numbers of the sender's matrix for each receiving peer, int64 [n]."""
    send_ids: Mapping[int, np.ndarray]
    """Global node ids of these rows, int64 [n]; they key the stochastic rounding."""
    receive_counts: Mapping[int, int]
    """Rows that come from each peer."""
    owner_sends: bool
    """True when owners send to holders (forward); False when partial gradients return."""

    def reversed(self, receive_rows: Mapping[int, Tensor], receive_ids: Mapping[int, np.ndarray]) -> Route:
        """Route over this boundary the other way; `receive_rows` are the rows that this rank received into."""
        counts = {peer: len(rows) for peer, rows in self.send_rows.items()}
        return Route(receive_rows, receive_ids, counts, not self.owner_sends)


class BoundarySampler:
    """Draws the rows of each boundary list that travel in an epoch.

    Owner and holder of a row draw the same without talking. This is the boundary node sampling of BNS-GCN.

    Args:
        route: The full lists.
        rate: Share of each list that travels, in (0, 1]; at 1 nothing is drawn.
        rank: Number of this rank.
        seed: Keys the draws, together with the epoch and the two ranks.
        device: Device that needs the positions.
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


class BlockSkipper:
    """Chooses the peers that get their block of rows again; the others go on with the block that they hold.

    This is the adaptive skipping of SANCUS. Partial gradients, which return to the owners, are never skipped.

    Args:
        route: The rows of each block.
        drift: A block is skipped while its relative change since it was last sent is at most this.
        limit: Epochs that a block may be skipped in a row; 0 sends every block in every epoch.
    """

    def __init__(self, route: Route, *, drift: float, limit: int) -> None:
        self.route, self.drift, self.limit = route, drift, limit
        self.active = limit > 0 and route.owner_sends
        """Whether a block may be missing, so that sender and receiver must agree on it in every epoch."""
        self._last: dict[int, Tensor] = {}
        self._age: dict[int, int] = {}

    def choose(self, x: Tensor) -> set[int]:
        """Peers that get rows of `x` [n, d] in this epoch; counts the epoch for the others."""
        if not self.active:
            return set(self.route.send_rows)
        chosen = set()
        for peer, rows in self.route.send_rows.items():
            block = x[rows]
            if self._may_skip(peer, block):
                self._age[peer] += 1
            else:
                self._last[peer], self._age[peer] = block.clone(), 0
                chosen.add(peer)
        return chosen

    def _may_skip(self, peer: int, block: Tensor) -> bool:
        last = self._last.get(peer)
        if last is None or self._age[peer] >= self.limit:
            return False
        return float((block - last).norm() / last.norm().clamp_min(1e-12)) <= self.drift

    def state_dict(self) -> dict[str, object]:
        """The blocks as they were last sent, and for how many epochs each was skipped since."""
        return {"last": self._last, "age": self._age}

    def load_state_dict(self, state: Mapping) -> None:
        """Continue from `state_dict`."""
        self._last, self._age = state["last"], state["age"]
