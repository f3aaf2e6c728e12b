"""Stage 3 of TACCL: which contiguous chunks on a link between hosts are merged into one message, and exact times.

TACCL (NSDI 2023), section 5.3. Merged chunks pay one latency, and the first waits for the last. With the orders of
stage 2 kept, the groups determine all times, so groups are searched: exhaustively if there are few, else by moving
one boundary at a time. The published implementation solves an integer program for the same choice.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from wirewise import work
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send
from wirewise.planners.collective.taccl.logical import Pair
from wirewise.planners.collective.taccl.timing import ChunkMessage, Schedule, justify, schedule

__all__ = ["MOST_TOGETHER", "GroupedSchedule", "group", "least_finish"]

# Together, chunks of 1 KiB took 0.34 of the time that they took apart between hosts of ndv2-sk-1.
MOST_TOGETHER = 6
"""Maximum number of chunks in a message, as published."""
_EXHAUSTIVE_BITS = 10
_TIMED_S = 2e-5
"""Work of timing a send."""
_Key = TypeVar("_Key")
_Cuts = tuple[bool, ...]
"""Whether neighbours on a link between hosts are apart, by orbit."""


class GroupedSchedule(NamedTuple):
    """Schedule and its quality."""

    schedule: Schedule
    apart: int
    """Finish time without merged chunks."""
    bound: int
    """Lower bound on the time of schedules with these routes and link orders."""
    tried: int
    """Number of groupings that were timed."""


def group(
    instance: RoutingInstance,
    positions: Mapping[Send, tuple[int, ...]],
    *,
    time_limit_s: float = 10.0,
    maximum: int = MOST_TOGETHER,
    own_apart: bool = False,
    upwards: bool = False,
) -> GroupedSchedule:
    """Choose which chunks to merge into messages.

    Args:
        instance: Chunks and topology.
        positions: Position of each send, from `ordering.order`.
        time_limit_s: Time limit in seconds, after which the best result is returned.
        maximum: Maximum number of chunks per message.
        own_apart: Whether a sender's own chunks and forwarded ones are kept separate (heuristic 11).
        upwards: Whether chunks are reduced up the trees.
    """
    search = _Search(instance, positions, maximum, own_apart, upwards)
    stop = work.spent_s() + time_limit_s
    apart = best = search.timed((True,) * search.bits)
    for cuts in search.choices(stop):
        found = search.timed(cuts)
        if found.finish < best.finish:
            best = found
        if work.spent_s() > stop:
            break
    best = min(best, justify(instance, best), key=lambda s: s.finish)
    return GroupedSchedule(best, apart.finish, least_finish(instance, list(positions), maximum), search.tried)


def least_finish(instance: RoutingInstance, sends: list[Send], maximum: int = MOST_TOGETHER) -> int:
    """Lower bound on the finish of schedules with these routes: load of links and ports, plus paths around."""
    top = instance.topology
    into = {(c, t): s for c, s, t in sends}
    head, tail, best = dict[tuple[int, int], int](), defaultdict[tuple[int, int], int](int), 0
    ordered = sorted(sends, key=lambda send: _depth(into, send))
    for c, s, t in ordered:
        head[c, t] = head.get((c, s), 0) + top.hops[s, t].cost
    for c, s, t in reversed(ordered):
        tail[c, s] = max(tail[c, s], top.hops[s, t].cost + tail[c, t])
    for pair, own in _grouped(sends, lambda send: (send[1:],)).items():
        hop = top.hops[pair]
        # Together chunks pay one latency, at most `most` of them; within a host each pays its own.
        messages = -(-len(own) // maximum) if hop.remote else len(own)
        busy = len(own) * hop.beta + (messages if top.alpha_occupies else 1) * hop.alpha
        first = min(head.get((c, s), 0) for c, s, _ in own)
        # On parallel links messages overlap, so that their sum bounds nothing.
        if hop.links == 1:
            best = max(best, first + busy + min(tail[c, t] for c, _, t in own))
    for number, own in _grouped(sends, lambda send: top.ports_of[send[1:]]).items():
        port = top.ports[number]
        first = min(head.get((c, s), 0) for c, s, _ in own)
        last = min(max(top.hops[s, t].beta - port.cost, 0) + tail[c, t] for c, s, t in own)
        best = max(best, first + len(own) * port.cost // port.links + last)
    return max([best, *head.values()])


def _grouped(sends: list[Send], places: Callable[[Send], Iterable[_Key]]) -> dict[_Key, list[Send]]:
    """Sends by the links or ports that they use."""
    found = defaultdict[_Key, list[Send]](list)
    for send in sends:
        for place in places(send):
            found[place].append(send)
    return found


def _depth(into: dict[tuple[int, int], int], send: Send) -> int:
    depth, here = 0, send.source
    while (send.chunk, here) in into:
        here = into[send.chunk, here]
        depth += 1
    return depth


class _Search:
    def __init__(
        self,
        instance: RoutingInstance,
        places: Mapping[Send, tuple[int, ...]],
        maximum: int,
        own_apart: bool,
        upwards: bool,
    ) -> None:
        self._instance, self._places, self._most, self._upwards = instance, places, maximum, upwards
        top = instance.topology
        self._local = [send for send in places if not top.hops[send[1:]].remote]
        self._lines = defaultdict[Pair, list[Send]](list)
        for send in sorted(places, key=lambda s: (places[s], s)):
            if top.hops[send[1:]].remote:
                self._lines[send[1:]].append(send)
        self._bit, self._fixed = self._number(own_apart)
        self.bits = len(set(self._bit.values()))
        self.tried = 0

    def _number(self, own_apart: bool) -> tuple[dict[Send, int], set[Send]]:
        """Index of the choice whether a send is apart from the one before it on its link; symmetric ones share it."""
        fixed, numbers, bit = set[Send](), dict[Send, int](), dict[Send, int]()
        for line in self._lines.values():
            fixed.add(line[0])
            for one, two in itertools.pairwise(line):
                owns = [self._instance.demands[s.chunk].origin == s.source for s in (one, two)]
                if own_apart and owns[0] != owns[1]:
                    fixed.add(two)
                    continue
                # One choice for an orbit: else groups would break the symmetry that routes and orders keep.
                first = min(self._instance.images(two))
                bit[two] = numbers.setdefault(first, len(numbers))
        return bit, fixed

    def choices(self, stop: float) -> Iterator[_Cuts]:
        """Choices to try, the caller times each before it asks for the next."""
        if self.bits <= _EXHAUSTIVE_BITS:
            yield from itertools.product((False, True), repeat=self.bits)
            return
        starts = [self._runs(length) for length in range(2, self._most + 1)]
        yield from starts
        yield from self._climb(min([(True,) * self.bits, *starts], key=lambda c: self.timed(c).finish), stop)

    def _climb(self, cuts: _Cuts, stop: float) -> Iterator[_Cuts]:
        """Change boundaries one by one while that helps."""
        best, improved = self.timed(cuts).finish, True
        while improved:
            improved = False
            for bit in range(self.bits):
                tried = (*cuts[:bit], not cuts[bit], *cuts[bit + 1 :])
                finish = self.timed(tried).finish
                if finish < best:
                    cuts, best, improved = tried, finish, True
                    yield cuts
                if work.spent_s() > stop:
                    return

    def _runs(self, length: int) -> _Cuts:
        """Groups of that length from the start of each link."""
        cuts = [True] * self.bits
        for line in self._lines.values():
            for place, send in enumerate(line):
                if send in self._bit:
                    cuts[self._bit[send]] = place % length == 0
        return tuple(cuts)

    def timed(self, cuts: _Cuts) -> Schedule:
        """The schedule of a choice; groups that grow too long are cut."""
        self.tried += 1
        work.charge(len(self._places) * _TIMED_S)
        messages = [ChunkMessage(send[1:], (send.chunk,)) for send in self._local]
        wishes = [self._places[send] for send in self._local]
        for pair, line in self._lines.items():
            for own in self._groups(line, cuts):
                messages.append(ChunkMessage(pair, tuple(send.chunk for send in own)))
                # The first chunk of a message waits for the last.
                wishes.append(max(self._places[send] for send in own))
        return schedule(self._instance, messages, wishes, self._upwards)

    def _groups(self, line: list[Send], cuts: _Cuts) -> Iterator[list[Send]]:
        own = [line[0]]
        for send in line[1:]:
            if send in self._fixed or cuts[self._bit[send]] or len(own) == self._most:
                yield own
                own = []
            own.append(send)
        yield own
