"""Topology as a capacity graph, the input of bounds and collective planners."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import TopologyError
from wirewise.topology import Topology

if TYPE_CHECKING:
    from wirewise.collective.routes import Arcs

__all__ = ["Edge", "Hashing", "Network", "RouteTable", "Use", "network"]


class Edge(NamedTuple):
    """One direction of a link."""

    source: int
    target: int
    bandwidth_bytes_per_s: float
    latency_s: float
    burst_bytes: float = 0.0
    """Bytes of a burst after idle time, before the bandwidth limits."""


class Use(NamedTuple):
    """Edge of a route, and the fraction of the pair's bytes that cross it."""

    edge: int
    fraction: float


class RouteTable(NamedTuple):
    """Routes [P] of a network in arrays, by source, then by target."""

    pair: NDArray[np.int64]
    """Source times the number of ranks plus target, ascending, [P]."""
    first: NDArray[np.int64]
    """Offset of each route's edges in `edges`, [P + 1]."""
    edges: NDArray[np.int64]
    fraction: NDArray[np.float64]
    """Fraction of the bytes of a route that cross each of its edges, as `edges`."""
    latency_s: NDArray[np.float64]
    """Latency of a route's paths, which all have the same, [P]."""
    rate_bytes_per_s: NDArray[np.float64]
    """Bandwidth of a route over all its paths: the minimum of bandwidth / fraction over its edges, [P]."""


class Hashing(NamedTuple):
    """Method by which switches between hosts choose among equal-cost paths."""

    seed: int
    connections: int = 1
    """Number of connections of a pair, each on a single path."""


class Network(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Vertices and directed edges; the first vertices are the ranks, then hosts and switches.

    Hosts and switches forward traffic. A rank forwards only by a transfer of its own. The bytes of a pair of ranks
    are split evenly over its equal-cost paths (`routes`).
    """

    name: str
    ranks: int
    vertices: tuple[str, ...]
    edges: tuple[Edge, ...]
    message_s: tuple[float, ...] = ()
    """CPU time per message at either end, in seconds, [ranks]. Defaults to 0."""
    processors: int = 0
    """Number of CPUs shared by all ranks, as on one machine. Defaults to a CPU per rank."""
    host_of_rank: tuple[int, ...] = ()
    """Index of the host of each rank, [ranks]. Defaults to unknown."""
    shares: bool = False
    """Whether concurrent messages share a link, as TCP connections do; otherwise a link serves them in order."""
    fabric: tuple[int, ...] = ()
    """Switches between hosts, which choose paths themselves; hosts and ranks choose explicitly."""
    hashing: Hashing | None = None
    """ECMP hashing. Defaults to none: each pair's bytes are spread evenly, as with many connections or packet
    spraying."""
    mirrored: bool = False
    """Whether all edges are reversed, and the routes with them."""

    @cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the edges that leave each vertex."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for number, edge in enumerate(self.edges):
            found[edge.source].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def arcs(self) -> Arcs:
        """Edges as arrays."""
        # Compiled, and numba takes a second to import; checks of programs need no routes.
        from wirewise.collective.routes import arcs_of

        return arcs_of(self.edges, len(self.vertices))

    @property
    def reversed(self) -> Network:
        """Network with every edge and every route reversed."""
        edges = tuple(e._replace(source=e.target, target=e.source) for e in self.edges)
        return msgspec.structs.replace(self, edges=edges, mirrored=not self.mirrored)

    @cached_property
    def table(self) -> RouteTable:
        """All routes, as one table."""
        if self.mirrored:
            return self._mirror()
        rows = list(map(self.table_from, range(self.ranks)))
        length = np.concatenate([np.diff(own.first) for own in rows])
        joined = (np.concatenate([own[field] for own in rows]) for field in range(2, len(RouteTable._fields)))
        first = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        return RouteTable(np.concatenate([own.pair for own in rows]), first, *joined)

    def table_from(self, source: int) -> RouteTable:
        """Routes from one rank."""
        if self.mirrored:
            return self.table_of(
                np.array([source * self.ranks + t for t in self.neighbours(source)], np.int64),
                [self.route(source, t) or () for t in self.neighbours(source)],
            )
        hashes = np.zeros(len(self.vertices), np.bool_)
        seed, connections = self.hashing or (0, 1)
        if self.hashing is not None:
            hashes[list(self.fabric)] = True
        from wirewise.collective.routes import routes_from

        first, edges, fraction = routes_from(self.arcs, self.ranks, source, hashes, seed, connections)
        targets = np.flatnonzero(np.diff(first))
        return self._filled(
            source * self.ranks + targets, np.append(first[targets], first[-1]), edges, fraction
        )

    def _mirror(self) -> RouteTable:
        """The table of the network that this is the mirror of, turned round."""
        known = self.reversed.table
        source, target = np.divmod(known.pair, self.ranks)
        order = np.argsort(target * self.ranks + source)
        length = np.diff(known.first)[order]
        first = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        # Edges of a route from its last to its first.
        place = np.repeat(known.first[1:][order] - 1, length) - (
            np.arange(first[-1]) - np.repeat(first[:-1], length)
        )
        pair = (target * self.ranks + source)[order]
        return self._filled(pair, first, known.edges[place], known.fraction[place])

    def table_of(self, pair: NDArray[np.int64], routes: Sequence[Sequence[Use]]) -> RouteTable:
        """Some routes as a table; `pair` as in its field."""
        first = np.cumsum([0, *map(len, routes)]).astype(np.int64)
        uses = np.array(list(itertools.chain.from_iterable(routes)), np.float64).reshape(-1, 2)
        return self._filled(pair, first, uses[:, 0].astype(np.int64), uses[:, 1].copy())

    def _filled(
        self,
        pair: NDArray[np.int64],
        first: NDArray[np.int64],
        edges: NDArray[np.int64],
        fraction: NDArray[np.float64],
    ) -> RouteTable:
        # Paths of a route are equally quick, so that the mean over its bytes is the latency of each.
        latency_s, rate = fraction * self.arcs.latency[edges], self.arcs.rate[edges] / fraction
        if len(edges):
            latency_s, rate = np.add.reduceat(latency_s, first[:-1]), np.minimum.reduceat(rate, first[:-1])
        return RouteTable(pair, first, edges, fraction, latency_s, rate)

    @cached_property
    def _row(self) -> dict[int, int]:
        return {pair: row for row, pair in enumerate(self.table.pair.tolist())}

    @cached_property
    def _uses(self) -> dict[int, tuple[Use, ...]]:
        return {}

    @cached_property
    def routed_network(self) -> Network:
        """Network restricted to the edges of routes, the only ones that programs use."""
        used = np.unique(self.table.edges)
        if len(used) == len(self.edges):
            return self
        return msgspec.structs.replace(self, edges=tuple(self.edges[edge] for edge in used))

    @cached_property
    def spreads(self) -> bool:
        """Whether some pair has several equal-cost paths."""
        return bool((self.table.fraction < 1).any())

    @cached_property
    def has_choice(self) -> bool:
        """Whether switches between hosts choose among several paths of some pair."""
        row = np.repeat(np.arange(len(self.table.pair)), np.diff(self.table.first))
        leaves, times = np.unique(
            row * len(self.vertices) + self.arcs.source[self.table.edges], return_counts=True
        )
        return bool(np.isin(leaves[times > 1] % len(self.vertices), self.fabric).any())

    def route(self, source: int, target: int) -> tuple[Use, ...] | None:
        """Edges of a transfer between two ranks: the widest paths through no other rank; of these, the lowest latency.

        Returns:
            Edges in the direction of travel, with fractions if equal-cost paths split the bytes. None if only other
            ranks could forward it.
        """
        row = self._row.get(source * self.ranks + target)
        if row is None:
            return None
        if row not in self._uses:
            known = self.table
            own = slice(known.first[row], known.first[row + 1])
            self._uses[row] = tuple(map(Use, known.edges[own].tolist(), known.fraction[own].tolist()))
        return self._uses[row]

    def rate(self, source: int, target: int) -> float:
        """Bandwidth of `route`, all its paths together, in bytes per second; 0 if there is no route."""
        row = self._row.get(source * self.ranks + target)
        return 0.0 if row is None else float(self.table.rate_bytes_per_s[row])

    def latency(self, source: int, target: int) -> float:
        """Latency of `route`, in seconds; infinite if there is no route."""
        row = self._row.get(source * self.ranks + target)
        return float("inf") if row is None else float(self.table.latency_s[row])

    def delay(self, source: int, target: int) -> float:
        """Time of an empty message, in seconds: `latency` plus the CPU cost at both ends.

        If ranks share CPUs, the cost is that of messages of all ranks at once.
        """
        if not self.message_s:
            return self.latency(source, target)
        waiting = max(self.ranks / self.processors, 1.0) if self.processors else 1.0
        return self.latency(source, target) + waiting * (self.message_s[source] + self.message_s[target])

    def neighbours(self, source: int) -> tuple[int, ...]:
        """Ranks that `source` can send to directly."""
        first, end = np.searchsorted(self.table.pair, [source * self.ranks, (source + 1) * self.ranks])
        return tuple((self.table.pair[first:end] - source * self.ranks).tolist())

    def routes_from(self, source: int) -> dict[int, tuple[Use, ...]]:
        """Routes from a rank to the others, by target."""
        known = self.table_from(source)
        uses = list(map(Use, known.edges.tolist(), known.fraction.tolist()))
        spans = itertools.pairwise(known.first.tolist())
        return {
            p % self.ranks: tuple(uses[a:b]) for p, (a, b) in zip(known.pair.tolist(), spans, strict=True)
        }


def network(
    topology: Topology, kinds: Collection[str] | None = None, ranks: Collection[str] | None = None
) -> Network:
    """Build the capacity graph of a topology.

    Args:
        topology: Topology to turn into a graph.
        kinds: Kinds of links to keep, such as {"nvlink"}. Defaults to all.
        ranks: Names of the ranks to keep, such as the devices allotted to a job. Defaults to all.

    Raises:
        TopologyError: A rank does not exist, or ranks are not connected; the message names them.
    """
    unknown = sorted(set(ranks or ()) - set(topology.ranks))
    if unknown:
        raise TopologyError(
            f"topology {topology.name!r} has no rank {unknown[0]!r}; expected {', '.join(topology.ranks)}"
        )
    kept = [r for r in topology.ranks if ranks is None or r in set(ranks)]
    left_out = set(topology.ranks) - set(kept)
    others = [
        v.name for part in (topology.hosts, topology.switches) for v in part if v.name not in topology.ranks
    ]
    names = (*kept, *others)
    place = {name: number for number, name in enumerate(names)}
    edges = [
        Edge(place[s], place[t], link.bandwidth_bytes_per_s, link.latency_s, link.burst_bytes)
        for link in topology.links
        if (kinds is None or link.kind in kinds) and not {link.source, link.target} & left_out
        for s, t in link.directions
    ]
    number = {host.name: place for place, host in enumerate(topology.hosts)}
    owner = {device.name: device.host for device in topology.devices}
    costs = {host.name: host.message_s for host in topology.hosts}
    costs |= {device.name: device.message_s for device in topology.devices}
    message_s = tuple(costs[rank] for rank in kept)
    made = Network(
        name=topology.name,
        ranks=len(kept),
        vertices=names,
        edges=tuple(edges),
        message_s=message_s if any(message_s) else (),
        processors=topology.processors,
        host_of_rank=tuple(number[owner.get(rank, rank)] for rank in kept),
        shares=any(link.kind == "ethernet" for link in topology.links if kinds is None or link.kind in kinds),
        fabric=tuple(place[switch.name] for switch in topology.switches if switch.host is None),
    )
    _check_joined(made)
    return made


def _check_joined(made: Network) -> None:
    for backwards in (False, True):
        onward: list[list[int]] = [[] for _ in made.vertices]
        for edge in made.edges:
            a, b = (edge.target, edge.source) if backwards else (edge.source, edge.target)
            onward[a].append(b)
        reached, open_ = {0}, [0]
        while open_:
            new = set(onward[open_.pop()]) - reached
            reached |= new
            open_ += new
        for rank in range(made.ranks):
            if rank not in reached:
                ends = (rank, 0) if backwards else (0, rank)
                raise TopologyError(
                    f"topology {made.name!r}: no path leads from {made.vertices[ends[0]]!r} to "
                    f"{made.vertices[ends[1]]!r}; a collective needs all ranks joined, add the missing link"
                )
