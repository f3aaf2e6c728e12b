"""Changes of a fusion at a given or random place, compiled."""

from __future__ import annotations

import numpy as np

from wirewise.planners.arrays import Ints
from wirewise.planners.fusion.disco.order import is_possible
from wirewise.planners.fusion.disco.tidy import remove_unused, split_home
from wirewise.sim.compiled import inner, outer
from wirewise.sim.regions import (
    FREE,
    OPAQUE,
    Arrays,
    Chains,
    Fusion,
    chains,
    holds,
    is_legal,
)

__all__ = ["COPY", "CUT", "FUSE", "changed", "crossing", "cut", "duplicated", "fuse_greedily", "fused"]


FUSE, COPY, CUT = 0, 1, 2
"""Kinds of changes."""

_TRIES = 4
"""Places that are tried for one change before it is left out."""


@outer
def crossing(graph: Arrays, fusion: Fusion, with_copies: bool) -> tuple[Ints, Ints]:
    """Find operators and the regions that read each from its home region, as fusion candidates.

    `with_copies` includes regions that hold copies.
    """
    most = len(graph.inputs) + len(fusion.copied)
    for one in fusion.copied:
        most += graph.input_start[one + 1] - graph.input_start[one]
    found, reading = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    count = _fill(graph, fusion, chains(fusion), with_copies, found, reading)
    return found[:count], reading[:count]


@inner
def _fill(
    graph: Arrays, fusion: Fusion, copies: Chains, with_copies: bool, found: Ints, reading: Ints
) -> int:
    """Fill in what crosses; how much it is."""
    n, m, count = len(fusion.home), len(fusion.copied), 0
    for k in range(n + m):
        one = k if k < n else fusion.copied[k - n]
        region = fusion.home[k] if k < n else fusion.holder[k - n]
        if graph.kind[one] != FREE:
            continue
        for e in range(graph.input_start[one], graph.input_start[one + 1]):
            source = graph.inputs[e]
            if graph.kind[source] != OPAQUE and not holds(fusion, copies, region, source):
                found[count], reading[count] = source, region
                count += 1
    for c in range(m if with_copies else 0):
        found[count], reading[count] = fusion.copied[c], fusion.holder[c]
        count += 1
    return count


@outer
def fused(graph: Arrays, fusion: Fusion, producer: int, reader: int) -> tuple[bool, Fusion]:
    """Fuse two regions if legal; returns whether they were, and the resulting fusion.

    Fusion is illegal if their operators may not be fused, or if a path between them leads through a third region.
    """
    kept, gone = min(producer, reader), max(producer, reader)
    inside = (fusion.home == kept) | (fusion.home == gone)
    inside[fusion.copied[(fusion.holder == kept) | (fusion.holder == gone)]] = True
    if not is_legal(graph, inside):
        return False, fusion
    found = _merged(fusion, kept, gone)
    return (True, found) if is_possible(graph, found) else (False, fusion)


@outer
def _merged(fusion: Fusion, kept: int, gone: int) -> Fusion:
    """The region `gone` as part of `kept`, which holds a copy once and none of what is at home in it."""
    home, copied, holder = fusion.home.copy(), fusion.copied.copy(), fusion.holder.copy()
    home[home == gone] = kept
    holder[holder == gone] = kept
    at_kept, count = home == kept, 0
    for c in range(len(copied)):
        one, region = copied[c], holder[c]
        if region == kept:
            if at_kept[one]:
                continue
            at_kept[one] = True
        copied[count], holder[count] = one, region
        count += 1
    return Fusion(home, copied[:count], holder[:count])


@outer
def fuse_greedily(graph: Arrays, fusion: Fusion, shared: bool) -> Fusion:
    """Fuse producers into their readers wherever legal, from the last operator to the first.

    Without `shared`, only producers with a single reading region. The fusion has no copies.
    """
    for number in range(len(graph.kind) - 1, -1, -1):
        for e in range(graph.input_start[number + 1] - 1, graph.input_start[number] - 1, -1):
            source = graph.inputs[e]
            producer, reader = fusion.home[source], fusion.home[number]
            if producer != reader and (shared or _only_reads(graph, fusion, reader, source)):
                fusion = fused(graph, fusion, producer, reader)[1]
    return fusion


@inner
def _only_reads(graph: Arrays, fusion: Fusion, region: int, operator: int) -> bool:
    """Whether nothing but the region reads the operator."""
    for e in range(graph.reader_start[operator], graph.reader_start[operator + 1]):
        if fusion.home[graph.readers[e]] != region:
            return False
    return not graph.kept[operator]


@outer
def duplicated(graph: Arrays, fusion: Fusion, operator: int, reader: int) -> tuple[bool, Fusion]:
    """Duplicate an operator into a reading region if legal; returns whether it was, and the resulting fusion."""
    inside = fusion.home == reader
    inside[operator] = True
    inside[fusion.copied[fusion.holder == reader]] = True
    if not is_legal(graph, inside):
        return False, fusion
    found = Fusion(fusion.home, np.append(fusion.copied, operator), np.append(fusion.holder, reader))
    return True, remove_unused(graph, found)


@outer
def cut(graph: Arrays, fusion: Fusion, operator: int) -> tuple[bool, Fusion]:
    """Split a region after an operator and its inputs, if anything else remains; returns whether it was split."""
    more, found = split_home(graph, fusion, operator)
    return more, remove_unused(graph, found) if more else found


@outer
def changed(graph: Arrays, fusion: Fusion, kinds: Ints, random: np.random.Generator) -> Fusion:
    """Apply changes of these kinds, each at a random place."""
    for kind in kinds:
        if kind == CUT:
            fusion = cut(graph, fusion, random.integers(0, len(fusion.home)))[1]
            continue
        sources, readers = crossing(graph, fusion, kind == FUSE)
        for _ in range(_TRIES if len(sources) else 0):
            edge = random.integers(0, len(sources))
            if kind == COPY:
                done, found = duplicated(graph, fusion, sources[edge], readers[edge])
            else:
                done, found = fused(graph, fusion, fusion.home[sources[edge]], readers[edge])
            if done:
                fusion = found
                break
    return fusion
