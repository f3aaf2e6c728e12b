"""Clean-up after a change: home operators without readers, and unused copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.arrays import Ints
from wirewise.planners.fusion.disco.order import launch_order
from wirewise.sim.compiled import inner, outer
from wirewise.sim.regions import Arrays, Chains, Fusion, chains, holds

__all__ = ["remove_unused", "split_home"]

Flags = NDArray[np.bool_]


@outer
def remove_unused(graph: Arrays, fusion: Fusion) -> Fusion:
    """Remove unused operators and copies from a fusion.

    An operator whose readers all have copies gets its home where the first copy is launched, so that homes still
    precede the other copies.
    """
    order, place = launch_order(graph, fusion), np.full(len(fusion.home), len(fusion.home))
    place[order] = np.arange(len(order))
    found = Fusion(fusion.home.copy(), fusion.copied, fusion.holder.copy())
    _tidy(graph, found, chains(fusion), place, np.full(len(place), -1))
    return _renumbered(found)


@inner
def _tidy(graph: Arrays, fusion: Fusion, copies: Chains, place: Ints, reading: Ints) -> None:
    # From readers to what they read: what goes may free what it read.
    for one in range(len(fusion.home) - 1, -1, -1):
        if copies.first[one] < 0:
            continue
        regions = _mark(graph, fusion, copies, reading, one)
        served = _drop_idle(fusion, copies, reading, one)
        if not graph.kept[one] and reading[fusion.home[one]] != one and served == regions:
            _move_home(fusion, copies, place, one)


@inner
def _mark(graph: Arrays, fusion: Fusion, copies: Chains, reading: Ints, operator: int) -> int:
    """Note the operator at the regions that compute a reader of it; how many there are."""
    count = 0
    for e in range(graph.reader_start[operator], graph.reader_start[operator + 1]):
        reader = graph.readers[e]
        count += reading[fusion.home[reader]] != operator
        reading[fusion.home[reader]] = operator
        c = copies.first[reader]
        while c >= 0:
            region, c = fusion.holder[c], copies.following[c]
            if region >= 0:
                count += reading[region] != operator
                reading[region] = operator
    return count


@inner
def _drop_idle(fusion: Fusion, copies: Chains, reading: Ints, operator: int) -> int:
    """Take out the operator's copies that serve nothing; how many are left."""
    left, c = 0, copies.first[operator]
    while c >= 0:
        if reading[fusion.holder[c]] == operator:
            left += 1
        else:
            fusion.holder[c] = -1
        c = copies.following[c]
    return left


@inner
def _move_home(fusion: Fusion, copies: Chains, place: Ints, operator: int) -> None:
    """The copy that is launched first becomes the home."""
    first, c = -1, copies.first[operator]
    while c >= 0:
        if fusion.holder[c] >= 0 and (first < 0 or place[fusion.holder[c]] < place[fusion.holder[first]]):
            first = c
        c = copies.following[c]
    if first >= 0:
        fusion.home[operator], fusion.holder[first] = fusion.holder[first], -1


@outer
def _renumbered(fusion: Fusion) -> Fusion:
    """Regions by their least operators, and the copies that are left."""
    home, left, number = fusion.home, fusion.holder >= 0, np.full(len(fusion.home), -1)
    for one in range(len(home)):
        if number[home[one]] < 0:
            number[home[one]] = one
    return Fusion(number[home], fusion.copied[left], number[fusion.holder[left]])


@outer
def split_home(graph: Arrays, fusion: Fusion, operator: int) -> tuple[bool, Fusion]:
    """Split an operator's region into the operator with its inputs, and the rest; returns whether it was split.

    Both parts get all copies. Region numbers are those of the least operators; that of the whole stays in use.
    """
    n, region, copies = len(fusion.home), fusion.home[operator], chains(fusion)
    early = np.zeros(n, dtype=np.bool_)
    early[operator] = True
    least_early, least_late = _spread(graph, fusion, copies, region, early)
    if least_late == n:
        return False, fusion
    home = fusion.home.copy()
    for one in range(n):
        if home[one] == region:
            home[one] = least_early if early[one] else least_late
    own = fusion.holder == region
    copied = np.concatenate((fusion.copied, fusion.copied[own]))
    other = np.full(own.sum(), max(least_early, least_late))
    return True, Fusion(home, copied, np.concatenate((fusion.holder, other)))


@inner
def _spread(graph: Arrays, fusion: Fusion, copies: Chains, region: int, early: Flags) -> tuple[int, int]:
    """Mark what the region computes for what is marked; the least operators at home with and without a mark."""
    least_early = least_late = len(early)
    for one in range(len(early) - 1, -1, -1):
        if early[one]:
            for e in range(graph.input_start[one], graph.input_start[one + 1]):
                if holds(fusion, copies, region, graph.inputs[e]):
                    early[graph.inputs[e]] = True
        if fusion.home[one] == region and early[one]:
            least_early = one
        elif fusion.home[one] == region:
            least_late = one
    return least_early, least_late
