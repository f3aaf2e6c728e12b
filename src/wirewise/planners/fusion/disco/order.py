"""Launch order of regions on one device, and ready times of gradients."""

from __future__ import annotations

import numpy as np

from wirewise.planners.arrays import Ints, Vector
from wirewise.sim.compiled import inner, outer
from wirewise.sim.regions import Arrays, Chains, Fusion, chains, holds

__all__ = ["gradients_ready", "is_possible", "launch_order"]


@outer
def launch_order(graph: Arrays, fusion: Fusion) -> Ints:
    """Launch order of the regions on one device, first ready first; incomplete if there is a cycle."""
    n, copies = len(fusion.home), chains(fusion)
    own, waits, order = (np.full(n, -1), np.full(n, -1)), np.zeros(n, dtype=np.int64), np.empty(n, np.int64)
    _count_waits(graph, fusion, copies, own, waits)
    return order[: _launch(graph, fusion, copies, own, waits, order)]


@inner
def _count_waits(graph: Arrays, fusion: Fusion, copies: Chains, own: tuple[Ints, Ints], waits: Ints) -> None:
    """How many edges and copies each region waits for; and its operators: the first, and the one after each."""
    member, following = own
    for c in range(len(fusion.copied)):
        waits[fusion.holder[c]] += 1
    for one in range(len(fusion.home) - 1, -1, -1):
        region = fusion.home[one]
        following[one], member[region] = member[region], one
        for e in range(graph.input_start[one], graph.input_start[one + 1]):
            if not holds(fusion, copies, region, graph.inputs[e]):
                waits[region] += 1


@inner
def _launch(
    graph: Arrays,
    fusion: Fusion,
    copies: Chains,
    own: tuple[Ints, Ints],
    waits: Ints,
    order: Ints,
) -> int:
    """Fill in the order; how many regions are launched."""
    (member, following), count, done = own, 0, 0
    for one in range(len(fusion.home)):
        region = fusion.home[one]
        if waits[region] == 0:
            # Marked, so that it is not queued again at another of its operators.
            order[count], waits[region] = region, -1
            count += 1
    while done < count:
        before, one = count, member[order[done]]
        done += 1
        while one >= 0:
            for e in range(graph.reader_start[one], graph.reader_start[one + 1]):
                other = fusion.home[graph.readers[e]]
                if not holds(fusion, copies, other, one):
                    count = _served(waits, order, count, other)
            c = copies.first[one]
            while c >= 0:
                count = _served(waits, order, count, fusion.holder[c])
                c = copies.following[c]
            one = following[one]
        _sort(order, before, count)
    return count


@inner
def _served(waits: Ints, order: Ints, count: int, region: int) -> int:
    """One thing less to wait for; how many are queued then."""
    waits[region] -= 1
    if waits[region] == 0:
        order[count] = region
        return count + 1
    return count


@inner
def _sort(order: Ints, first: int, end: int) -> None:
    """Sort operators that are ready at the same time by number: few regions, inserted one by one."""
    for i in range(first + 1, end):
        region, place = order[i], i
        while place > first and order[place - 1] > region:
            order[place] = order[place - 1]
            place -= 1
        order[place] = region


@outer
def is_possible(graph: Arrays, fusion: Fusion) -> bool:
    """Whether regions have no cyclic dependence, so that each is launched."""
    home, regions = fusion.home, 0
    for one in range(len(home)):
        # Each region is at home in itself.
        regions += home[one] == one
    return len(launch_order(graph, fusion)) == regions


@outer
def gradients_ready(graph: Arrays, fusion: Fusion, seconds: Vector) -> Vector:
    """Ready time of each gradient, given the time of each region, in seconds, [g]."""
    order, ends, now = launch_order(graph, fusion), np.zeros(len(seconds)), 0.0
    for place in range(len(order)):
        now += seconds[order[place]]
        ends[order[place]] = now
    return ends[fusion.home[graph.gradients]]
