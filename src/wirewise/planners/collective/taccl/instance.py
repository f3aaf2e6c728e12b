"""Routing instance: chunks with origin and targets on a logical topology, and its symmetries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

import numpy as np
from scipy.sparse.csgraph import shortest_path

from wirewise.collective import Collective
from wirewise.errors import InputError
from wirewise.planners.collective.deadline import Deadline
from wirewise.planners.collective.demands import moves
from wirewise.planners.collective.taccl.logical import Logical, Pair

__all__ = ["ChunkDemand", "RoutingInstance", "Send", "Tree", "instance"]

_Key = TypeVar("_Key", bound=tuple[int, ...])
_DEMAND_S = 2e-4
"""Work of finding the pairs, or the distances, of a chunk."""
Tree = dict[int, int]
"""Tree of one chunk: the sender from which each rank gets it."""


class ChunkDemand(NamedTuple):
    """Origin and targets of a chunk."""

    origin: int
    targets: frozenset[int]


class Send(NamedTuple):
    """Transfer of one chunk from one rank to another."""

    chunk: int
    source: int
    target: int


_Usable = tuple[frozenset[Pair], dict[Pair, int], dict[Pair, int]]
"""Pairs that chunks may use, and hops and times between ranks over these."""


@dataclass(frozen=True)
class RoutingInstance:
    """Chunks to route on a logical topology."""

    topology: Logical
    demands: tuple[ChunkDemand, ...]
    deadline: Deadline = field(default_factory=Deadline, compare=False)
    """Deadline of the first matching; `allowed` and `distances` raise `DeadlineReached` after it."""
    _usable_pairs: dict[tuple[int, frozenset[int]], _Usable] = field(default_factory=dict, compare=False)
    _images: dict[Send, list[Send]] = field(default_factory=dict, compare=False)
    _kinds: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, compare=False)

    @cached_property
    def allowed(self) -> tuple[frozenset[Pair], ...]:
        """Pairs that each chunk may use: those on shortest paths, in hops, to one of its targets.

        A chunk leaves its host only for hosts with targets, only once, and only through its senders.
        """
        found: dict[ChunkDemand, frozenset[Pair]] = {}
        for demand in self.demands:
            self.deadline.check(_DEMAND_S)
            if demand not in found:
                found[demand] = self._allowed(demand)
        return tuple(found[demand] for demand in self.demands)

    def _allowed(self, demand: ChunkDemand) -> frozenset[Pair]:
        top = self.topology
        away = frozenset(top.node(t) for t in demand.targets) - {top.node(demand.origin)}
        usable, hops, times = self._usable(demand.origin, away)
        missing = [t for t in demand.targets if (demand.origin, t) not in hops]
        if missing:
            raise InputError(
                f"{top.name}: rank {demand.origin} cannot reach rank {missing[0]}; the sketch must leave a path "
                "from each rank, through a sender of its host, to each other host"
            )
        kept = {demand.origin} | _between(hops, demand)
        if top.detours:
            kept |= _between(times, demand)
        return frozenset((s, t) for s, t in usable if s in kept and t in kept)

    def _usable(self, origin: int, away: frozenset[int]) -> _Usable:
        """Pairs for chunks of a rank with targets on some hosts, and hops and times between ranks over these."""
        if (origin, away) not in self._usable_pairs:
            top, home = self.topology, self.topology.node(origin)
            senders = set(top.senders[origin]) if top.senders else set(range(top.ranks))
            usable = frozenset(
                (s, t)
                for (s, t), hop in top.hops.items()
                if t != origin
                and (not hop.remote or (top.node(s) == home and top.node(t) in away and s in senders))
            )
            hops = _least(dict.fromkeys(usable, 1))
            self._usable_pairs[origin, away] = usable, hops, self._times(usable)
        return self._usable_pairs[origin, away]

    def _times(self, pairs: frozenset[Pair]) -> dict[Pair, int]:
        return _least({pair: self.topology.hops[pair].cost for pair in pairs})

    @cached_property
    def distances(self) -> tuple[dict[Pair, int], ...]:
        """Shortest time between ranks for each chunk, over the pairs that it may use."""
        cache: dict[frozenset[Pair], dict[Pair, int]] = {}
        for pairs in self.allowed:
            self.deadline.check(_DEMAND_S)
            if pairs not in cache:
                cache[pairs] = self._times(pairs)
        return tuple(cache[pairs] for pairs in self.allowed)

    @cached_property
    def generators(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Generators of the symmetry group of topology and chunks: images of the ranks and of the chunks."""
        found = []
        for offset, size in self.topology.rotations:
            ranks = rotation(self.topology, offset, size)
            chunks = self._chunk_images(ranks)
            if chunks is not None:
                found.append((ranks, chunks))
        return tuple(found)

    @cached_property
    def group(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """All symmetries, the identity first."""
        first = (tuple(range(self.topology.ranks)), tuple(range(len(self.demands))))
        found, open_ = {first: None}, deque([first])
        while open_:
            here = open_.popleft()
            for other in self.generators:
                made = (
                    tuple(other[0][r] for r in here[0]),
                    tuple(other[1][c] for c in here[1]),
                )
                if made not in found:
                    found[made] = None
                    open_.append(made)
        return tuple(found)

    def images(self, send: Send) -> list[Send]:
        """Orbit of a send under the symmetries, without duplicates."""
        if send not in self._images:
            c, s, t = send
            images = (Send(chunks[c], ranks[s], ranks[t]) for ranks, chunks in self.group)
            self._images[send] = list(dict.fromkeys(images))
        return self._images[send]

    def kind(self, pair: Pair, chunks: tuple[int, ...]) -> tuple[int, ...]:
        """Orbit key of a message: equal for symmetric messages, and for no others."""
        key = (*pair, *chunks)
        if key not in self._kinds:
            s, t = pair
            self._kinds[key] = min(
                (ranks[s], ranks[t], *sorted(image[c] for c in chunks)) for ranks, image in self.group
            )
        return self._kinds[key]

    def orbits(self, keys: Iterable[_Key], kind: str) -> dict[_Key, _Key]:
        """Representative of each key under the symmetries, by union-find.

        Args:
            keys: Keys of one kind.
            kind: Kinds of their entries, one letter each: c for a chunk, r for a rank.
        """
        parent = {key: key for key in keys}
        for ranks, chunks in self.generators:
            maps = [chunks if letter == "c" else ranks for letter in kind]
            for key in parent:
                image = cast(_Key, tuple(m[i] for m, i in zip(maps, key, strict=True)))
                a, b = _root(parent, key), _root(parent, image)
                if a != b:
                    parent[b] = a
        return {key: _root(parent, key) for key in parent}

    def _chunk_images(self, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
        """Where the chunks go; None if the collective, such as one with a root, is not symmetric."""
        places: dict[tuple[ChunkDemand, int], int] = {}
        names: list[tuple[ChunkDemand, int]] = []
        count: dict[ChunkDemand, int] = {}
        for chunk, demand in enumerate(self.demands):
            name = (demand, count.get(demand, 0))
            count[demand] = name[1] + 1
            places[name] = chunk
            names.append(name)
        moved = [(ChunkDemand(ranks[d.origin], frozenset(ranks[t] for t in d.targets)), n) for d, n in names]
        if any(name not in places for name in moved):
            return None
        return tuple(places[name] for name in moved)


def rotation(topology: Logical, offset: int, size: int) -> tuple[int, ...]:
    """Images of the ranks under a rotation within groups.

    Raises:
        InputError: The groups do not divide the ranks, or the rotation is no symmetry of the topology.
    """
    if size < 1 or topology.ranks % size:
        raise InputError(
            f"{topology.name}: got symmetry groups of {size}; expected a divisor of {topology.ranks}"
        )
    ranks = tuple(r - r % size + (r % size + offset) % size for r in range(topology.ranks))
    if not is_symmetry(topology, ranks):
        raise InputError(
            f"{topology.name}: the symmetry [{offset}, {size}] maps a link, port or relay to one that is not there "
            "or costs something else; leave it out of symmetry_offsets"
        )
    return ranks


def is_symmetry(topology: Logical, ranks: tuple[int, ...]) -> bool:
    """Whether a permutation of the ranks preserves links, ports and relays."""
    top = topology
    if any(top.hops.get((ranks[s], ranks[t])) != hop for (s, t), hop in top.hops.items()):
        return False
    ports = {(p.pairs, p.cost, p.links) for p in top.ports}
    moved = {(frozenset((ranks[s], ranks[t]) for s, t in p.pairs), p.cost, p.links) for p in top.ports}
    return ports == moved and all(
        {ranks[s] for s in senders} == set(top.senders[ranks[r]]) for r, senders in enumerate(top.senders)
    )


def instance(
    topology: Logical,
    collective: Collective,
    chunkup: int,
    root: int = 0,
    members: tuple[int, ...] = (),
    deadline: Deadline | None = None,
) -> RoutingInstance:
    """Build the instance of a non-reducing collective.

    Args:
        topology: Logical topology to run on.
        collective: A non-reducing collective; reducing ones are planned as the reversed mirror.
        chunkup: Chunks in each block.
        root: Rank of a rooted collective.
        members: Ranks of the group. Defaults to all.
        deadline: Deadline of the first matching. None if there is none.
    """
    wanted = moves(collective, members or range(topology.ranks), root)
    found = tuple(ChunkDemand(d.source, frozenset(d.targets)) for d in wanted for _ in range(chunkup))
    return RoutingInstance(topology, found, deadline or Deadline())


def _root(parent: dict[_Key, _Key], key: _Key) -> _Key:
    while parent[key] != key:
        parent[key] = parent[parent[key]]
        key = parent[key]
    return key


def _between(least: dict[Pair, int], demand: ChunkDemand) -> set[int]:
    """Ranks on a least way from the origin to a target."""
    start, far = demand.origin, 1 << 60
    from_start = {r: cost for (s, r), cost in least.items() if s == start}
    return {
        r
        for r, cost in from_start.items()
        if any(cost + least.get((r, t), far) == from_start[t] for t in demand.targets)
    }


def _least(costs: dict[Pair, int]) -> dict[Pair, int]:
    """Least cost between every two ranks, costs being above 0; unreachable pairs are missing."""
    ranks = sorted({r for pair in costs for r in pair})
    place = {r: number for number, r in enumerate(ranks)}
    direct = np.zeros((len(ranks), len(ranks)))
    for (s, t), cost in costs.items():
        direct[place[s], place[t]] = cost
    rows = shortest_path(direct).tolist() if costs else []
    return {
        (s, t): int(cost)
        for s, row in zip(ranks, rows, strict=True)
        for t, cost in zip(ranks, row, strict=True)
        if cost < math.inf
    }
