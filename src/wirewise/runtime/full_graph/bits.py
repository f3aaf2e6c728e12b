"""Gives messages their bit widths during training: traces, asks the planner, and tells both ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from wirewise import rng
from wirewise.codec import BITS
from wirewise.runtime.full_graph.exchange import HaloExchange
from wirewise.runtime.full_graph.lane import Lane

if TYPE_CHECKING:
    from wirewise.runtime.full_graph.local import PartTensors

__all__ = ["BitController"]

_FIRST_PLAN = 2
"""Epochs traced at 8 bits before the first plan."""


class BitController:
    """Decides the bits of the training lanes of one exchange.

    Args:
        exchange: Whose lanes.
        tensors: The part, for the scores of its messages.
        replan_every: Epochs between two decisions.
    """

    def __init__(self, exchange: HaloExchange, tensors: PartTensors, *, replan_every: int) -> None:
        self.exchange, self.tensors, self.replan_every = exchange, tensors, replan_every
        exchange.new_lane = self._first_bits

    def _first_bits(self, lane: Lane) -> None:
        if self.exchange.mode.bits == "random":
            self._tell({lane.name: lane}, {lane.name: self._drawn(lane)})
        else:
            lane.set_static_bits()

    def before_epoch(self, epoch: int) -> None:
        """Decide anew where that is due; a collective call."""
        lanes = self.exchange.training_lanes()
        if self.exchange.mode.bits == "random" and epoch and epoch % self.replan_every == 0:
            self._tell(lanes, {name: self._drawn(lane) for name, lane in lanes.items()})

    def after_epoch(self, epoch: int) -> None:
        """Take in what the epoch has shown."""

    def _drawn(self, lane: Lane) -> dict[int, np.ndarray]:
        """Every message uniformly from 2, 4 and 8 bits."""
        drawn = {}
        for peer, ids in lane.route.send_ids.items():
            key = rng.stream_key(lane.seed, self.exchange.epoch, lane.number, self.exchange.transport.rank, peer, 0xB1)
            drawn[peer] = np.array([2, 4, 8], np.uint8)[rng.uniform16(key, ids, 1)[:, 0] % 3]
        return drawn

    def _tell(self, lanes: Mapping[str, Lane], bits: Mapping[str, Mapping[int, np.ndarray]]) -> None:
        """Send every receiver the bit table of its channels, one byte a message, and lay the buffers out anew."""
        transport = self.exchange.transport
        for name, lane in lanes.items():
            sends = {p: torch.from_numpy(np.ascontiguousarray(b)) for p, b in bits[name].items()}
            receives = {p: torch.empty(n, dtype=torch.uint8) for p, n in lane.route.receive_counts.items()}
            transport.exchange(f"bit table of {name}", 2 * lane.number + 1, sends, receives)
            lane.set_bits(dict(bits[name]), {p: t.numpy() for p, t in receives.items()})

    def counts(self) -> dict[str, dict[int, int]]:
        """Messages of this rank by bit width for each exchange."""
        found: dict[str, dict[int, int]] = {}
        for name, lane in self.exchange.training_lanes().items():
            table = np.concatenate([np.empty(0, np.uint8), *lane.send_bits.values()])
            found[name] = {b: int((table == b).sum()) for b in BITS}
        return found

    def gather_counts(self, epochs: list[dict[str, dict[int, int]]]) -> list[dict[str, dict[int, int]]]:
        """The same counts summed over ranks; a collective call."""
        names = sorted({name for epoch in epochs for name in epoch})
        table = torch.tensor(
            [[[epoch.get(n, {}).get(b, 0) for b in BITS] for n in names] for epoch in epochs], dtype=torch.int64
        )
        self.exchange.transport.all_reduce(table, "bit counts")
        return [
            {n: {b: int(c) for b, c in zip(BITS, row, strict=True) if c} for n, row in zip(names, rows, strict=True)}
            for rows in table.tolist()
        ]

    def state_dict(self) -> dict[str, object]:
        """Nothing beyond the lanes' own state yet."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from `state_dict`."""
