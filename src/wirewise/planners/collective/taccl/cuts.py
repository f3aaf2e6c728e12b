"""Lower bounds on the time of a routing: chunks that must leave a set of ranks, in whole chunks per link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from wirewise import work
from wirewise.planners.collective.deadline import Deadline
from wirewise.planners.collective.taccl.instance import RoutingInstance
from wirewise.planners.collective.taccl.logical import Logical, Pair

__all__ = ["lower_bound"]

_ALL_SUBSETS_UP_TO = 8
_LOOKED_S = 5e-7
"""Work of asking a chunk whether it crosses a cut."""


def lower_bound(instance: RoutingInstance, deadline: Deadline | None = None) -> int:
    """Lower bound over sets of ranks on the time to send what must leave them, and over longest paths.

    A link that takes a chunk for time b carries no more than floor(T / b) chunks in time T. Sets: single ranks,
    hosts, all subsets of a host of up to eight ranks, and their complements, within the deadline.
    """
    deadline = deadline or Deadline()
    top = instance.topology
    ways = (
        d[demand.origin, t]
        for demand, d in zip(instance.demands, instance.distances, strict=True)
        for t in demand.targets
    )
    bound = max(ways, default=0)
    # The chunks of a block cross alike: 8 kinds in place of 128 chunks on dgx-1v with 16 chunks a block.
    kinds = Counter(instance.demands)
    for inside in _sets(top):
        if deadline.left_s <= 0:
            break
        work.charge(len(kinds) * _LOOKED_S)
        crossing = sum(n for d, n in kinds.items() if d.origin in inside and not d.targets <= inside)
        if crossing:
            bound = _least_time(top, inside, crossing, bound)
    return bound


def _sets(top: Logical) -> Iterator[frozenset[int]]:
    all_ = frozenset(range(top.ranks))
    for node in range(top.nodes):
        own = range(node * top.node_size, (node + 1) * top.node_size)
        parts = [frozenset({r}) for r in own]
        if top.node_size <= _ALL_SUBSETS_UP_TO:
            parts = [
                frozenset(r for i, r in enumerate(own) if bits >> i & 1) for bits in range(1, 1 << len(own))
            ]
        for part in (*parts, frozenset(own)):
            yield part
            yield all_ - part


def _least_time(top: Logical, inside: frozenset[int], crossing: int, least: int) -> int:
    """Least time, from `least` on, in which chunks can leave a set."""
    cut = [pair for pair in top.hops if pair[0] in inside and pair[1] not in inside]
    if not cut:
        return least
    groups = [_by_port(top, cut, choice) for choice in (min, max)]
    # Most sets bind less than one before: one look is enough for these.
    if min(_carried(top, grouped, least) for grouped in groups) >= crossing:
        return least
    low, high = least, max(least, crossing * max(top.occupies(pair) for pair in cut))
    while low < high:
        middle = (low + high) // 2
        if min(_carried(top, grouped, middle) for grouped in groups) >= crossing:
            high = middle
        else:
            low = middle + 1
    return low


def _by_port(
    top: Logical, cut: list[Pair], choice: Callable[[tuple[int, ...]], int]
) -> dict[int, list[Pair]]:
    """Pairs by one of the ports that they use; -1: by none."""
    grouped: dict[int, list[Pair]] = {}
    for pair in cut:
        ports = top.ports_of[pair]
        grouped.setdefault(choice(ports) if ports else -1, []).append(pair)
    return grouped


def _carried(top: Logical, grouped: dict[int, list[Pair]], time: int) -> int:
    """Chunks that the pairs can carry in the time."""
    total = 0
    for number, pairs in grouped.items():
        carried = sum(top.hops[pair].links * (time // top.occupies(pair)) for pair in pairs)
        if number >= 0:
            port = top.ports[number]
            carried = min(carried, port.links * (time // port.cost))
        total += carried
    return total
