"""Costs of collectives along mesh dimensions, from the links of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans.parallel import MoveStep

__all__ = ["MeshCosts"]

_MEETING = ("reduce_scatter", "all_to_all")
"""Collectives whose messages come from all other ranks at once."""


class MeshCosts:
    """Times of collectives along the mesh dimensions of all stages, from the links of their ranks.

    All groups along a dimension communicate at once and share the interfaces of hosts, and the slowest stage counts.
    Rings follow the order of the ranks.
    """

    def __init__(self, links: Links, ranks: Sequence[Sequence[int]], mesh: Sequence[int]) -> None:
        self.mesh, self._links = tuple(mesh), links
        self._ranks = np.array(ranks).reshape(len(ranks), *mesh)

    @cached_property
    def _rings(self) -> list[tuple[float, float]]:
        return [self._factors(axis, everyone=False) for axis in range(len(self.mesh))]

    @cached_property
    def _pairs(self) -> list[tuple[float, float]]:
        return [self._factors(axis, everyone=True) for axis in range(len(self.mesh))]

    @cached_property
    def _sends(self) -> tuple[float, float]:
        found = [(0.0, 0.0)]
        for first, second in zip(self._ranks[:-1], self._ranks[1:], strict=True):
            found.append(self._load(list(zip(first.ravel().tolist(), second.ravel().tolist(), strict=True))))
        return max(one[0] for one in found), max(one[1] for one in found)

    def _factors(self, axis: int, *, everyone: bool) -> tuple[float, float]:
        """Latency of a round, and seconds per byte that each rank sends to its next, or to each other one."""
        found = [(0.0, 0.0)]
        for stage in self._ranks:
            groups = np.moveaxis(stage, axis, -1).reshape(-1, self.mesh[axis])
            pairs = []
            for group in groups.tolist():
                n = len(group)
                hops = range(1, n) if everyone else range(1, min(n, 2))
                pairs += [(group[i], group[(i + hop) % n]) for hop in hops for i in range(n)]
            found.append(self._load(pairs))
        return max(one[0] for one in found), max(one[1] for one in found)

    def _load(self, pairs: list[tuple[int, int]]) -> tuple[float, float]:
        """Latency and seconds per byte when each of these pairs carries as many bytes."""
        links = self._links
        if not pairs:
            return 0.0, 0.0
        ends = np.array(pairs)
        latency = float(links.pairs.latency_s[ends[:, 0], ends[:, 1]].max())
        slope = float(links.pairs.s_per_byte[ends[:, 0], ends[:, 1]].max())
        if not np.isfinite(slope):
            raise InputError("no path joins all ranks of the mesh; add a link, or plan for fewer ranks")
        hosts = links.host_of_rank[ends]
        crosses = hosts[:, 0] != hosts[:, 1]
        for side, rate in ((0, links.bandwidth_out_bytes_per_s), (1, links.bandwidth_in_bytes_per_s)):
            slope = max(slope, float((np.bincount(hosts[crosses, side], minlength=links.hosts) / rate).max()))
        inside = np.bincount(hosts[~crosses, 0], minlength=links.hosts) / links.intra_bytes_per_s
        return latency, max(slope, float(inside.max()))

    def seconds(self, step: MoveStep) -> float:
        """Time of a collective, of a slice (zero) or of a message to the next stage, in seconds."""
        if step.kind == "slice" or (step.mesh_dim >= 0 and self.mesh[step.mesh_dim] == 1):
            return 0.0
        if step.kind == "send":
            latency, slope = self._sends
            return self._links.call_s + latency + step.sent_bytes * slope
        n = self.mesh[step.mesh_dim]
        # Of two ranks, no messages meet.
        burden = 1.0 if n == 2 and step.kind in _MEETING else self._links.burden.get(step.kind, 1.0)
        if step.kind == "all_to_all":
            latency, slope = self._pairs[step.mesh_dim]
            return self._links.call_s + (n - 1) * latency + step.size_bytes / n * slope * burden
        latency, slope = self._rings[step.mesh_dim]
        rounds = (2 if step.kind == "all_reduce" else 1) * (n - 1)
        return self._links.call_s + rounds * latency + step.sent_bytes * slope * burden

    @property
    def send_s_per_byte(self) -> float:
        """Seconds per byte of a message to the next stage, if all ranks of a stage send equally much."""
        return self._sends[1]
