"""When links and ports are free."""

from __future__ import annotations

import heapq

from wirewise.planners.collective.taccl.logical import Logical, Pair

__all__ = ["Clocks"]


class Clocks:
    """Times from which each parallel link and port is free."""

    def __init__(self, topology: Logical) -> None:
        self._top = topology
        self._links = {pair: [0] * hop.links for pair, hop in topology.hops.items()}
        self._ports = [[0] * port.links for port in topology.ports]

    def free(self, pair: Pair) -> int:
        """From when on a message could pass."""
        ports = self._top.ports_of[pair]
        return (
            max(self._links[pair][0], *(self._ports[p][0] for p in ports)) if ports else self._links[pair][0]
        )

    def take(self, pair: Pair, start: int, chunks: int = 1) -> int:
        """Let a message pass from `start` on; when it has arrived."""
        heapq.heapreplace(self._links[pair], start + self._top.occupies(pair, chunks))
        for number in self._top.ports_of[pair]:
            heapq.heapreplace(self._ports[number], start + chunks * self._top.ports[number].cost)
        return start + self._top.hops[pair].time(chunks)
