"""Not sending boundary blocks that hardly changed since they were last sent."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from wirewise.runtime.full_graph.route import Route

__all__ = ["BlockSkipper"]


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
