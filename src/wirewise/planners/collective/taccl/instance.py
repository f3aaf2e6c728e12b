"""What is to be routed: chunks with an origin and targets on a logical topology, and what is symmetric in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

from wirewise.collective import Collective, Program
from wirewise.collective.relations import blocks
from wirewise.errors import InputError
from wirewise.planners.collective.taccl.logical import Logical, Pair

__all__ = ["Demand", "Instance", "Send", "Tree", "instance"]

_Key = TypeVar("_Key", bound=tuple[int, ...])
Tree = dict[int, int]
"""Of one chunk: from whom each rank gets it."""


class Demand(NamedTuple):
    """Where a chunk is and where it must go."""

    origin: int
    targets: frozenset[int]


class Send(NamedTuple):
    """One chunk from one rank to another."""

    chunk: int
    source: int
    target: int


@dataclass(frozen=True)
class Instance:
    """Chunks on a logical topology."""

    topology: Logical
    demands: tuple[Demand, ...]

    @cached_property
    def allowed(self) -> tuple[frozenset[Pair], ...]:
        """Pairs that each chunk may use: those between ranks on a shortest path, in hops, to one of its targets.

        A chunk leaves its host only towards hosts with targets, only once, and only through its senders.
        """
        found = {demand: self._allowed(demand) for demand in dict.fromkeys(self.demands)}
        return tuple(found[demand] for demand in self.demands)

    def _allowed(self, demand: Demand) -> frozenset[Pair]:
        top, home = self.topology, self.topology.node(demand.origin)
        away = {top.node(t) for t in demand.targets} - {home}
        senders = set(top.senders[demand.origin]) if top.senders else set(range(top.ranks))
        usable = {
            (s, t)
            for (s, t), hop in top.hops.items()
            if t != demand.origin
            and (not hop.remote or (top.node(s) == home and top.node(t) in away and s in senders))
        }
        forward = _distances(usable, demand.origin)
        kept = {demand.origin}
        for target in demand.targets:
            if target not in forward:
                raise InputError(
                    f"{top.name}: rank {demand.origin} cannot reach rank {target}; the sketch must leave a path "
                    "from each rank, through a sender of its host, to each other host"
                )
            back = _distances({(t, s) for s, t in usable}, target)
            length = forward[target]
            kept |= {r for r in forward if r in back and forward[r] + back[r] == length}
        if top.detours:
            kept |= _between(_times(top, frozenset(usable)), demand)
        return frozenset((s, t) for s, t in usable if s in kept and t in kept)

    @cached_property
    def distances(self) -> tuple[dict[Pair, int], ...]:
        """Least time between ranks for each chunk, over the pairs that it may use."""
        cache: dict[frozenset[Pair], dict[Pair, int]] = {}
        for pairs in self.allowed:
            if pairs not in cache:
                cache[pairs] = _times(self.topology, pairs)
        return tuple(cache[pairs] for pairs in self.allowed)

    @cached_property
    def generators(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Symmetries that hold of topology and chunks: images of the ranks and of the chunks."""
        found = []
        for offset, size in self.topology.rotations:
            ranks = rotation(self.topology, offset, size)
            chunks = self._chunk_images(ranks)
            if chunks is not None:
                found.append((ranks, chunks))
        return tuple(found)

    @cached_property
    def group(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """All symmetries that the generators make, the identity first."""
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
        """The send and what symmetries make of it, each once."""
        found = self._images.get(send)
        if found is None:
            c, s, t = send
            found = list(dict.fromkeys(Send(chunks[c], ranks[s], ranks[t]) for ranks, chunks in self.group))
            self._images[send] = found
        return found

    def kind(self, pair: Pair, chunks: tuple[int, ...]) -> tuple[int, ...]:
        """The same for messages that symmetries make of each other, and for no others."""
        key = (*pair, *chunks)
        found = self._kinds.get(key)
        if found is None:
            s, t = pair
            found = min(
                (ranks[s], ranks[t], *sorted(image[c] for c in chunks)) for ranks, image in self.group
            )
            self._kinds[key] = found
        return found

    @cached_property
    def _images(self) -> dict[Send, list[Send]]:
        return {}

    @cached_property
    def _kinds(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}

    def orbits(self, keys: Iterable[_Key], kind: str) -> dict[_Key, _Key]:
        """Representative of each key under the symmetries, by union-find.

        Args:
            keys: All of one kind.
            kind: What their entries are: a letter each, c a chunk and r a rank.
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
        """Where the chunks go; None: the collective, such as one with a root, is not symmetric."""
        places: dict[tuple[Demand, int], int] = {}
        names: list[tuple[Demand, int]] = []
        count: dict[Demand, int] = {}
        for chunk, demand in enumerate(self.demands):
            name = (demand, count.get(demand, 0))
            count[demand] = name[1] + 1
            places[name] = chunk
            names.append(name)
        moved = [(Demand(ranks[d.origin], frozenset(ranks[t] for t in d.targets)), n) for d, n in names]
        if any(name not in places for name in moved):
            return None
        return tuple(places[name] for name in moved)


def rotation(topology: Logical, offset: int, size: int) -> tuple[int, ...]:
    """Images of the ranks.

    Raises:
        InputError: Groups that do not divide the ranks, or the topology looks different afterwards.
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
    """Whether links, ports and relays look the same after ranks are exchanged for their images."""
    top = topology
    if any(top.hops.get((ranks[s], ranks[t])) != hop for (s, t), hop in top.hops.items()):
        return False
    ports = {(p.pairs, p.cost, p.links) for p in top.ports}
    moved = {(frozenset((ranks[s], ranks[t]) for s, t in p.pairs), p.cost, p.links) for p in top.ports}
    return ports == moved and all(
        {ranks[s] for s in senders} == set(top.senders[ranks[r]]) for r, senders in enumerate(top.senders)
    )


def instance(
    topology: Logical, collective: Collective, chunkup: int, root: int = 0, members: tuple[int, ...] = ()
) -> Instance:
    """Chunks of a collective that only moves data.

    Args:
        topology: Where.
        collective: Not one that reduces: those run another one backwards.
        chunkup: Chunks in each block.
        root: Rank of a rooted collective.
        members: Ranks of the group; none: all.
    """
    group = members or tuple(range(topology.ranks))
    made = Program(
        name="demand",
        collective=collective,
        ranks=topology.ranks,
        chunks=blocks(collective, len(group)) * chunkup,
        transfers=(),
        members=members,
        root=root,
    )
    return Instance(topology, tuple(_demand(made, chunk) for chunk in range(made.chunks)))


def _demand(program: Program, chunk: int) -> Demand:
    (origin,) = program.starts_at(chunk)
    return Demand(origin, frozenset(program.ends_at(chunk)) - {origin})


def _root(parent: dict[_Key, _Key], key: _Key) -> _Key:
    while parent[key] != key:
        parent[key] = parent[parent[key]]
        key = parent[key]
    return key


def _distances(pairs: set[Pair], start: int) -> dict[int, int]:
    """Hops from a rank to each that it reaches."""
    targets: dict[int, list[int]] = {}
    for s, t in pairs:
        targets.setdefault(s, []).append(t)
    found, open_ = {start: 0}, deque([start])
    while open_:
        here = open_.popleft()
        for there in targets.get(here, ()):
            if there not in found:
                found[there] = found[here] + 1
                open_.append(there)
    return found


def _between(times: dict[Pair, int], demand: Demand) -> set[int]:
    """Ranks on a quickest way from the origin to a target."""
    start, far = demand.origin, 1 << 60
    return {
        r
        for s, r in times
        if s == start
        and any(times[start, r] + times.get((r, t), far) == times[start, t] for t in demand.targets)
    }


def _times(topology: Logical, pairs: frozenset[Pair]) -> dict[Pair, int]:
    """Least time between every two ranks (Floyd and Warshall); unreachable pairs are missing."""
    ranks = sorted({r for pair in pairs for r in pair})
    found = {(r, r): 0 for r in ranks} | {pair: topology.hops[pair].cost for pair in pairs}
    for k in ranks:
        for s in ranks:
            head = found.get((s, k))
            if head is None:
                continue
            for t in ranks:
                tail = found.get((k, t))
                if tail is not None and head + tail < found.get((s, t), 1 << 60):
                    found[s, t] = head + tail
    return found
