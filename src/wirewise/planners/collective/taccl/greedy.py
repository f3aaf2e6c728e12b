"""Initial algorithm by matching free links with missing chunks, event by event.

The idea of TACOS (Won et al., MICRO 2024), kept symmetric: each send is placed with all its symmetric images. It
bounds the time of the integer program from above and is its initial solution.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send, Tree
from wirewise.planners.collective.taccl.logical import Pair
from wirewise.planners.collective.taccl.timing import Clocks

__all__ = ["Matching", "match", "prune_trees"]

_NEVER = 1 << 60
_PAIR_S, _CHUNK_S = 5e-7, 4e-6
"""Work of a look at a pair, and at a chunk that waits for it."""
_Rank = tuple[bool, int, bool, int, int]


class Matching(NamedTuple):
    """Result of the matching."""

    trees: tuple[Tree, ...]
    """Sender from which each rank gets a chunk, by chunk."""
    starts: dict[Send, int]
    finish: int


def match(instance: RoutingInstance, seed: int = 0, *, first_come: bool = False) -> Matching:
    """Match links with chunks until every chunk has reached its targets.

    At each event, free links take chunks that their target lacks: between hosts first, then those with the longest
    remaining path, then the rarest.

    Args:
        instance: Chunks and topology.
        seed: Seed of tie-breaking; 0 breaks ties by rank.
        first_come: Whether, between hosts and within, the chunks that have waited longest at their source go first.

    Raises:
        PlanError: Links become idle before the targets have all chunks.
        Late: The instance's deadline has passed.
    """
    return _Matching(instance, seed, first_come).run()


class _Matching:
    def __init__(self, instance: RoutingInstance, seed: int, first_come: bool) -> None:
        self._instance, self._top, self._first_come = instance, instance.topology, first_come
        self._random = np.random.default_rng(seed) if seed else None
        self._clocks = Clocks(self._top)
        self._arrival = [{d.origin: 0} for d in instance.demands]
        self._unmet = [set(d.targets) for d in instance.demands]
        self._entered = [{self._top.node(d.origin)} for d in instance.demands]
        self._near = [
            {t: ways[d.origin, t] for t in d.targets}
            for d, ways in zip(instance.demands, instance.distances, strict=True)
        ]
        pairs = set(instance.orbits(self._top.hops, "rr").values())
        self._waiting: dict[Pair, list[int]] = {pair: [] for pair in sorted(pairs)}
        for chunk, allowed in enumerate(instance.allowed):
            for pair in allowed & pairs:
                self._waiting[pair].append(chunk)
        self._starts: dict[Send, int] = {}
        self._events = [0]

    def run(self) -> Matching:
        while self._events:
            # Each pair is looked at, and each chunk that waits for a free one.
            self._instance.deadline.check(len(self._waiting) * _PAIR_S)
            now = heapq.heappop(self._events)
            while self._events and self._events[0] == now:
                heapq.heappop(self._events)
            for *_, send in sorted(self._candidates(now)):
                self._place(send, now)
            if not any(self._unmet):
                return self._result()
        left = next(c for c, unmet in enumerate(self._unmet) if unmet)
        raise PlanError(
            f"{self._top.name}: no send brings chunk {left} to ranks {sorted(self._unmet[left])}; the sketch leaves "
            "them no path"
        )

    def _candidates(self, now: int) -> list[tuple[_Rank, float, Send]]:
        found = []
        for pair, waiting in self._waiting.items():
            if self._clocks.free(pair) > now:
                continue
            waiting[:] = [c for c in waiting if pair[1] not in self._arrival[c]]
            self._instance.deadline.check(len(waiting) * _CHUNK_S)
            for chunk in waiting:
                send = Send(chunk, *pair)
                if self._fits(send, now):
                    found.append((self._rank(send), self._tie(send), send))
        return found

    def _rank(self, send: Send) -> _Rank:
        """The smallest goes first."""
        chunk, source, target = send
        near, ways = self._near[chunk], self._instance.distances[chunk]
        farthest = max(self._unmet[chunk], key=lambda t: near[t])
        far = near[farthest]
        nearer = near.get(target) == far or ways.get((target, farthest), _NEVER) < far
        remote = self._top.hops[source, target].remote
        waited = self._arrival[chunk][source] if self._first_come else 0
        return not remote, waited, not nearer, -far, len(self._arrival[chunk])

    def _tie(self, send: Send) -> float:
        return self._random.random() if self._random else (send.target - send.source) % self._top.ranks

    def _fits(self, send: Send, now: int) -> bool:
        chunk, source, target = send
        arrived = self._arrival[chunk]
        if arrived.get(source, _NEVER) > now or target in arrived or not self._unmet[chunk]:
            return False
        if self._top.hops[source, target].remote:
            return self._top.node(target) not in self._entered[chunk] and self._own_gone(send)
        if target in self._unmet[chunk]:
            return True
        ways, near = self._instance.distances[chunk], self._near[chunk]
        return any(ways.get((target, t), _NEVER) < near[t] for t in self._unmet[chunk])

    def _own_gone(self, send: Send) -> bool:
        """Whether a sender that must send its own chunks first has done so."""
        chunk, source, target = send
        demands = self._instance.demands
        if not self._top.own_first or demands[chunk].origin == source:
            return True
        node = self._top.node(target)
        return all(
            node in self._entered[c] or not any(self._top.node(t) == node for t in d.targets)
            for c, d in enumerate(demands)
            if d.origin == source
        )

    def _place(self, send: Send, now: int) -> None:
        """Place the send with its images, if all of them can start now."""
        images = self._instance.images(send)
        if any(self._clocks.free((s, t)) > now or not self._fits(Send(c, s, t), now) for c, s, t in images):
            return
        targets = {(c, t) for c, _, t in images}
        if len(targets) < len(images) or self._shares_port(images):
            return
        for image in images:
            chunk, source, target = image
            end = self._clocks.take((source, target), now)
            self._starts[image] = now
            self._arrival[chunk][target] = end
            self._unmet[chunk].discard(target)
            self._entered[chunk].add(self._top.node(target))
            ways, near = self._instance.distances[chunk], self._near[chunk]
            for t in self._unmet[chunk]:
                near[t] = min(near[t], ways.get((target, t), _NEVER))
            heapq.heappush(self._events, end)
            heapq.heappush(self._events, self._clocks.free((source, target)))

    def _shares_port(self, images: list[Send]) -> bool:
        used = [p for _, s, t in images for p in self._top.ports_of[s, t]] if len(images) > 1 else []
        return len(used) > len(set(used))

    def _result(self) -> Matching:
        trees: list[Tree] = [{} for _ in self._instance.demands]
        for chunk, source, target in self._starts:
            trees[chunk][target] = source
        kept = prune_trees(self._instance, trees)
        starts = {s: v for s, v in self._starts.items() if kept[s.chunk].get(s.target) == s.source}
        finish = max((self._arrival[s.chunk][s.target] for s in starts), default=0)
        return Matching(kept, starts, finish)


def prune_trees(instance: RoutingInstance, trees: list[Tree]) -> tuple[Tree, ...]:
    """Remove branches that lead to no target."""
    kept = []
    for demand, tree in zip(instance.demands, trees, strict=True):
        needed: Tree = {}
        for target in demand.targets:
            while target != demand.origin and target not in needed:
                needed[target] = tree[target]
                target = tree[target]
        kept.append(needed)
    return tuple(kept)
