"""Stage 2 of TACCL: order of chunks on each link and port, by greedy heuristics.

TACCL (NSDI 2023), section 5.2. Heuristics have the numbers of the published implementation.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from wirewise.errors import InputError
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send, Tree
from wirewise.planners.collective.taccl.routing import sends_of
from wirewise.planners.collective.taccl.timing import Clocks

__all__ = ["HEURISTICS", "order"]


class _Facts(NamedTuple):
    """Features of a send that rules look at."""

    to_travel: int
    """Longest time to a leaf, this hop included."""
    to_travel_sum: int
    """Sum of these times over all hops from here on."""
    has_travelled: int
    own: bool
    """Whether the chunk starts on the host of the sender."""


_Key = tuple[int, ...]
_Rule = Callable[[_Facts, int], _Key]
HEURISTICS: dict[int, _Rule] = {
    5: lambda f, ready: (ready, -f.has_travelled),
    10: lambda f, ready: (-f.to_travel, ready),
    11: lambda f, ready: (-f.to_travel, ready),
    12: lambda f, ready: (-f.to_travel_sum, ready),
    13: lambda f, ready: (-f.to_travel, ready, int(not f.own)),
    14: lambda f, ready: (ready, int(not f.own), -f.to_travel),
    15: lambda f, ready: (ready, -f.to_travel),
}
"""Rules by number: the least key goes next. 5 places hops from the last to the first; 11 orders as 10, and stage 3
keeps a rank's own chunks and those of others apart; 12 is for sums, which are reduced up the trees."""
_BY_GREEDY_TIME_ONLY = frozenset({14, 15})


def order(
    instance: RoutingInstance,
    trees: tuple[Tree, ...],
    routed: Mapping[Send, int],
    heuristic: int,
    upwards: bool = False,
) -> dict[Send, tuple[int, ...]]:
    """Compute a position for each send; on every link and port, smaller positions go first.

    Args:
        instance: Chunks and topology.
        trees: Routes of the chunks.
        routed: Start time of each send in stage 1.
        heuristic: One of `HEURISTICS`.
        upwards: Whether chunks are reduced up the trees.

    Raises:
        InputError: The heuristic is unknown.
    """
    if heuristic not in HEURISTICS:
        raise InputError(
            f"got the ordering heuristic {heuristic}; expected one of {', '.join(map(str, HEURISTICS))}"
        )
    backward = (heuristic == 5) != upwards
    greedy = _greedy(instance, trees, HEURISTICS[heuristic], backward)
    if heuristic == 5:
        last = max(greedy.values(), default=0)
        greedy = {send: last - start for send, start in greedy.items()}
    count = instance.topology.ranks
    by_routing = heuristic not in _BY_GREEDY_TIME_ONLY and not upwards
    return {
        send: (routed[send] if by_routing else 0, start, (send.source - send.target) % count)
        for send, start in greedy.items()
    }


def _greedy(
    instance: RoutingInstance, trees: tuple[Tree, ...], rule: _Rule, backward: bool
) -> dict[Send, int]:
    """Start of each send; orbits of symmetric sends are placed at once.

    With `backward` a send is placed after those that follow it, and no two of a rank's sends of one chunk overlap,
    as those are its additions when sums go up.
    """
    top, facts = instance.topology, _facts(instance, trees)
    waits, wakes = _waits(trees, backward)
    ready = dict.fromkeys(facts, 0)
    cell = defaultdict[tuple[int, int], int](int)
    clocks, placed = Clocks(top), dict[Send, int]()

    def earliest(send: Send) -> int:
        free = max(ready[send], clocks.free(send[1:]))
        return max(free, cell[send[:2]]) if backward else free

    def key(send: Send) -> tuple[_Key, Send]:
        _, s, t = send
        size = top.node_size
        tie = ((s - t) % top.ranks, t % size, s % size, top.node(t))
        return (*rule(facts[send], earliest(send)), *tie), send

    open_ = [key(send) for send, count in waits.items() if count == 0]
    heapq.heapify(open_)
    while open_:
        old, send = heapq.heappop(open_)
        if send in placed:
            continue
        now = key(send)
        if now[0] > old:
            heapq.heappush(open_, now)
            continue
        for image in instance.images(send):
            if image in placed or waits[image]:
                continue
            placed[image] = earliest(image)
            end = clocks.take(image[1:], placed[image])
            cell[image[:2]] = end
            for other in wakes[image]:
                ready[other] = max(ready[other], end)
                waits[other] -= 1
                if waits[other] == 0:
                    heapq.heappush(open_, key(other))
    return placed


def _waits(trees: tuple[Tree, ...], backward: bool) -> tuple[dict[Send, int], dict[Send, list[Send]]]:
    """How many sends each one waits for, and whom each wakes."""
    waits, wakes = dict.fromkeys(sends_of(trees), 0), defaultdict[Send, list[Send]](list)
    for send in list(waits):
        tree = trees[send.chunk]
        if send.source not in tree:
            continue
        parent = Send(send.chunk, tree[send.source], send.source)
        first, second = (send, parent) if backward else (parent, send)
        waits[second] += 1
        wakes[first].append(second)
    return waits, wakes


def _facts(instance: RoutingInstance, trees: tuple[Tree, ...]) -> dict[Send, _Facts]:
    top, found = instance.topology, dict[Send, _Facts]()
    for chunk, tree in enumerate(trees):
        origin = instance.demands[chunk].origin
        home = top.node(origin)
        longest, total, travelled = dict.fromkeys(tree, 0), dict.fromkeys(tree, 0), {origin: 0}
        downwards = _from_root(tree, origin)
        for target in reversed(downwards):
            source = tree[target]
            cost = top.hops[source, target].cost
            longest[target] += cost
            total[target] += cost
            if source != origin:
                longest[source] = max(longest[source], longest[target])
                total[source] += total[target]
        for target in downwards:
            source = tree[target]
            travelled[target] = travelled[source] + top.hops[source, target].cost
            found[Send(chunk, source, target)] = _Facts(
                longest[target], total[target], travelled[source], top.node(source) == home
            )
    return found


def _from_root(tree: Tree, origin: int) -> list[int]:
    """Targets, each after its source."""
    found, children = list[int](), defaultdict[int, list[int]](list)
    for target, source in tree.items():
        children[source].append(target)
    open_ = [origin]
    while open_:
        here = open_.pop()
        found += children[here]
        open_ += children[here]
    return found
