"""Boundary rows sent in an epoch: those of a route, a random sample, or changed blocks."""

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
    """Number of rows from each peer."""
    owner_sends: bool
    """True when owners send to holders (forward); False when partial gradients return."""

    def reversed(self, receive_rows: Mapping[int, Tensor], receive_ids: Mapping[int, np.ndarray]) -> Route:
        """Reverse route over this boundary; `receive_rows` are the rows that this rank received into."""
        counts = {peer: len(rows) for peer, rows in self.send_rows.items()}
        return Route(receive_rows, receive_ids, counts, not self.owner_sends)


class BoundarySampler:
    """Sampler of the boundary rows sent in an epoch.

    Both ends sample the same rows without communication. This is the boundary node sampling of BNS-GCN.

    Args:
        route: Route with the full lists.
        rate: Sampled fraction of each list, in (0, 1]; 1 disables sampling.
        rank: Index of this rank.
        seed: Seed of the samples, together with the epoch and the two ranks.
        device: Device of the sampled positions.
    """

    def __init__(self, route: Route, rate: float, *, rank: int, seed: int, device: torch.device) -> None:
        self.route, self.rate = route, rate
        self.rank, self.seed, self.device = rank, seed, device
        self.scale = 1.0 / rate
        """Factor of a sampled row, so that sums over the boundary keep their expectation."""

    def draw(self, epoch: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Sampled positions sent to and received from each peer, ascending int64; no entries for whole lists."""
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
    """Selector of peers to which a block of rows is sent again; others reuse their cached block.

    This is the adaptive skipping of SANCUS. Partial gradients, which are returned to owners, are never skipped.

    Args:
        route: Route with the rows of each block.
        drift: Maximum relative change since the last send for which a block is skipped.
        limit: Maximum number of epochs that a block is skipped in a row; 0 sends every block in every epoch.
    """

    def __init__(self, route: Route, *, drift: float, limit: int) -> None:
        self.route, self.drift, self.limit = route, drift, limit
        self.active = limit > 0 and route.owner_sends
        """Whether a block may be missing, so that sender and receiver must agree on it in every epoch."""
        self._last: dict[int, Tensor] = {}
        self._age: dict[int, int] = {}

    def choose(self, x: Tensor) -> set[int]:
        """Choose the peers to which rows of `x` [n, d] are sent in this epoch; counts the epoch for the others."""
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
        """Blocks as last sent, and the number of epochs that each was skipped since."""
        return {"last": self._last, "age": self._age}

    def load_state_dict(self, state: Mapping) -> None:
        """Continue from `state_dict`."""
        self._last, self._age = state["last"], state["age"]
