"""Detection of links that are slower than planned while programs run, to trigger replanning.

The kernel counts for each connection the time with bytes in flight. Bytes over that time is the bandwidth of the
edge, if there were many bytes; short sends are uninformative and left out.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from wirewise.collective import Network
from wirewise.cost import TCP_PAYLOAD
from wirewise.errors import ProgramError
from wirewise.runtime.collective.group import CollectiveGroup

__all__ = ["LinkMonitor", "SlowLink"]

_LEAST_BUSY_S = 0.05
"""The kernel counts in ticks of up to 10 ms."""


class SlowLink(NamedTuple):
    """Link between two ranks with less bandwidth than planned."""

    source: int
    target: int
    planned_bytes_per_s: float
    seen_bytes_per_s: float


class LinkMonitor:
    """Monitor that compares a group's edges with the network of its programs' plan.

    Args:
        group: Group whose ranks all create a monitor, and call `poll` at the same steps.
        network: Network with a rank for each of the group.
        slower: Report links below this fraction of their bandwidth.

    Raises:
        ProgramError: The network has another number of ranks.
    """

    def __init__(self, group: CollectiveGroup, network: Network, *, slower: float = 0.8) -> None:
        if network.ranks != group.size:
            raise ProgramError(
                f"network {network.name!r} has {network.ranks} ranks; expected the group's {group.size}"
            )
        self._group, self._slower = group, slower
        self.network = network
        """Network with the rates of slow links as they were seen last."""
        self._before = self._counts()

    def poll(self) -> list[SlowLink]:
        """Links that were slow since the last poll, the same list on all ranks; a collective operation."""
        now = self._counts()
        since, self._before = now - self._before, now
        everywhere = torch.empty(self._group.size, *since.shape, dtype=torch.float64)
        self._group.all_gather(everywhere, torch.from_numpy(since))
        slow = self._slow(everywhere.numpy())
        seen = {(s.source, s.target): s.seen_bytes_per_s for s in slow}
        edges = tuple(
            edge._replace(bandwidth_bytes_per_s=seen.get(edge[:2], edge.bandwidth_bytes_per_s))
            for edge in self.network.edges
        )
        self.network = msgspec.structs.replace(self.network, edges=edges)
        return slow

    def _counts(self) -> NDArray[np.float64]:
        """Bytes and busy seconds to each rank, [2, ranks]."""
        found = np.zeros((2, self._group.size))
        for edge in self._group.statistics():
            if edge.source == self._group.rank:
                found[:, edge.target] = edge.size_bytes, edge.busy_s
        return found

    def _slow(self, since: NDArray[np.float64]) -> list[SlowLink]:
        """Direct links below their share; `since` is [ranks, 2, ranks], sources first."""
        found = []
        for edge in self.network.edges:
            if max(edge.source, edge.target) >= self._group.size:
                continue  # It is shared, so no single edge shows its rate.
            sent_bytes, busy_s = since[edge.source, :, edge.target]
            seen = sent_bytes / TCP_PAYLOAD / max(busy_s, _LEAST_BUSY_S)
            if busy_s >= _LEAST_BUSY_S and seen < self._slower * edge.bandwidth_bytes_per_s:
                found.append(SlowLink(edge.source, edge.target, edge.bandwidth_bytes_per_s, float(seen)))
        return found
