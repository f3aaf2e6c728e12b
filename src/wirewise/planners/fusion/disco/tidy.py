"""What a change leaves behind: operators at homes that nobody reads any more, and copies that serve nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.fusion.disco.arrays import Arrays, Fusion
from wirewise.sim.compiled import inner, outer

__all__ = ["split_home", "tidied"]

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@outer
def tidied(graph: Arrays, fusion: Fusion, order: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Home, copied and holder without them.

    An operator whose readers all have copies is at home where the first copy is launched, so that homes still come
    before the other copies.

    Args:
        graph: Of the operators.
        fusion: With copies.
        order: Its launch order.
    """
    n = len(fusion.home)
    place = np.full(n, n, dtype=np.int64)
    for p in range(len(order)):
        place[order[p]] = p
    home, copied, holder = fusion.home.copy(), fusion.copied.copy(), fusion.holder.copy()
    # From readers to what they read: what goes may free what it read.
    for one in np.unique(copied)[::-1]:
        for c in range(len(copied)):
            own = copied[c] == one and holder[c] >= 0
            if own and not _serves(graph, home, copied, holder, one, holder[c]):
                holder[c] = -1
        if graph.kept[one] or _serves(graph, home, copied, holder, one, home[one]):
            continue
        if _is_read(graph, home, copied, holder, one):
            continue
        first = -1
        for c in range(len(copied)):
            if copied[c] == one and holder[c] >= 0 and (first < 0 or place[holder[c]] < place[holder[first]]):
                first = c
        if first >= 0:
            home[one], holder[first] = holder[first], -1
    left = holder >= 0
    copied, holder, number = copied[left], holder[left], np.full(n, -1, dtype=np.int64)
    for one in range(n):
        if number[home[one]] < 0:
            number[home[one]] = one
    # A region without its least operator has another number now.
    return number[home], copied, number[holder]


@outer
def split_home(graph: Arrays, fusion: Fusion, operator: int) -> tuple[Numbers, Numbers, Numbers]:
    """Home, copied and holder with the operator, and what its region computes for it, as a region of its own.

    Both parts get all copies. The numbers are those of the least operators; that of the whole stays in use.
    """
    region, home = fusion.home[operator], fusion.home.copy()
    early = np.zeros(len(home), dtype=np.bool_)
    early[operator] = True
    least_early = least_late = len(home)
    for one in range(len(home) - 1, -1, -1):
        if early[one]:
            for e in range(graph.input_start[one], graph.input_start[one + 1]):
                if _has(home, fusion.copied, fusion.holder, graph.inputs[e], region):
                    early[graph.inputs[e]] = True
        if home[one] == region and early[one]:
            least_early = one
        elif home[one] == region:
            least_late = one
    if least_late == len(home):
        return home, fusion.copied, fusion.holder
    for one in range(len(home)):
        if home[one] == region:
            home[one] = least_early if early[one] else least_late
    other = max(least_early, least_late)
    own = fusion.holder == region
    copied = np.concatenate((fusion.copied, fusion.copied[own]))
    return home, copied, np.concatenate((fusion.holder, np.full(own.sum(), other)))


@inner
def _serves(
    graph: Arrays, home: Numbers, copied: Numbers, holder: Numbers, operator: int, region: int
) -> bool:
    """Whether the region computes something that reads the operator."""
    for e in range(graph.reader_start[operator], graph.reader_start[operator + 1]):
        if _has(home, copied, holder, graph.readers[e], region):
            return True
    return False


@inner
def _is_read(graph: Arrays, home: Numbers, copied: Numbers, holder: Numbers, operator: int) -> bool:
    """Whether a region without the operator computes something that reads it."""
    for e in range(graph.reader_start[operator], graph.reader_start[operator + 1]):
        reader = graph.readers[e]
        if not _has(home, copied, holder, operator, home[reader]):
            return True
        for c in range(len(copied)):
            if copied[c] == reader and holder[c] >= 0 and not _has(home, copied, holder, operator, holder[c]):
                return True
    return False


@inner
def _has(home: Numbers, copied: Numbers, holder: Numbers, operator: int, region: int) -> bool:
    if home[operator] == region:
        return True
    for c in range(len(copied)):
        if copied[c] == operator and holder[c] == region:
            return True
    return False
