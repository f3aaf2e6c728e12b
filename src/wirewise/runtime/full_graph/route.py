"""Which boundary rows a rank exchanges with each of its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

__all__ = ["Route"]


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
