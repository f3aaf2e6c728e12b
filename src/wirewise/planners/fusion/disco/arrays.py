"""A graph and its fusion as arrays, and the compiled functions on them.

Every operator has a region in which it is computed for all who read it, its home; the least operator that is at home
in a region is the region's number. Other regions may hold copies: a copy serves its own region only. A region that
holds a copy of an operator is launched behind that operator's home.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.fusion.disco.graph import OperatorGraph
from wirewise.sim.compiled import inner, outer

__all__ = [
    "Arrays",
    "Fusion",
    "arrays",
    "crossing",
    "describe",
    "gradients_ready",
    "launch_order",
    "merged",
    "signatures",
]

Vector = NDArray[np.float64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_FREE, _MATMUL, _OPAQUE = 0, 1, 2


class Arrays(NamedTuple):
    """A graph of n operators with g gradients."""

    input_start: Numbers
    """First input of each operator in `inputs`, [n + 1]."""
    inputs: Numbers
    reader_start: Numbers
    """First reader of each operator in `readers`, [n + 1]."""
    readers: Numbers
    kind: Numbers
    """0: fused with anything, 1: matmul, 2: opaque, [n]."""
    kept: Flags
    """A gradient, or read by no operator, so that its result always leaves its region, [n]."""
    gradients: Numbers
    """Operators whose outputs are gradients, [g]."""
    size_bytes: Vector
    """Of the gradients, [g]."""


class Fusion(NamedTuple):
    """Which operators run together."""

    home: Numbers
    """Number of the region of each operator, [n]."""
    copied: Numbers
    """Operators that are computed in other regions too, [copies]."""
    holder: Numbers
    """Region of each copy, [copies]."""


def arrays(graph: OperatorGraph) -> Arrays:
    """The graph as arrays."""
    kinds = {"matmul": _MATMUL, "opaque": _OPAQUE}
    readers: list[list[int]] = [[] for _ in graph.operators]
    for number, one in enumerate(graph.operators):
        for i in one.inputs:
            readers[i].append(number)
    sizes = [graph.operators[i].output_bytes for i in graph.gradients]
    return Arrays(
        *_rows([one.inputs for one in graph.operators]),
        *_rows(readers),
        np.array([kinds.get(one.category, _FREE) for one in graph.operators], dtype=np.int64),
        np.array([bool(one.gradient) or not readers[i] for i, one in enumerate(graph.operators)]),
        np.array(graph.gradients, dtype=np.int64),
        np.array(sizes, dtype=np.float64),
    )


def _rows(lists: list[tuple[int, ...]] | list[list[int]]) -> tuple[Numbers, Numbers]:
    start = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return start, np.array([i for one in lists for i in one], dtype=np.int64)


@inner
def _holds(fusion: Fusion, region: int, operator: int) -> bool:
    if fusion.home[operator] == region:
        return True
    for c in range(len(fusion.copied)):
        if fusion.copied[c] == operator and fusion.holder[c] == region:
            return True
    return False


@outer
def describe(graph: Arrays, fusion: Fusion, region: int) -> tuple[Numbers, Flags, bool]:
    """A region's operators in ascending order, which of their results leave it, and whether they may be fused.

    Opaque operators run alone. A matmul takes what follows it, not what it reads and no other matmul.
    """
    inside = fusion.home == region
    for c in range(len(fusion.copied)):
        if fusion.holder[c] == region:
            inside[fusion.copied[c]] = True
    has_copy = np.zeros(len(inside), dtype=np.bool_)
    has_copy[fusion.copied] = True
    members = np.flatnonzero(inside)
    leaves, legal, matmuls = np.zeros(len(members), dtype=np.bool_), True, 0
    for m in range(len(members)):
        one = members[m]
        leaves[m] = fusion.home[one] == region and _leaves(graph, fusion, has_copy, one)
        if graph.kind[one] == _OPAQUE:
            legal = legal and len(members) == 1
        elif graph.kind[one] == _MATMUL:
            matmuls += 1
            for e in range(graph.input_start[one], graph.input_start[one + 1]):
                legal = legal and not inside[graph.inputs[e]]
    return members, leaves, legal and matmuls < 2


@inner
def _leaves(graph: Arrays, fusion: Fusion, has_copy: Flags, operator: int) -> bool:
    """Whether the operator's result leaves its home: another region computes something that reads it."""
    if graph.kept[operator]:
        return True
    region = fusion.home[operator]
    for e in range(graph.reader_start[operator], graph.reader_start[operator + 1]):
        reader = graph.readers[e]
        own = fusion.home[reader]
        if own != region and not (has_copy[operator] and _holds(fusion, own, operator)):
            return True
        if not has_copy[reader]:
            continue
        for c in range(len(fusion.copied)):
            other = fusion.holder[c]
            if fusion.copied[c] == reader and other != region and not _holds(fusion, other, operator):
                return True
    return False


@outer
def crossing(graph: Arrays, fusion: Fusion, copies: bool) -> tuple[Numbers, Numbers]:
    """Operators, and regions that read each of them from its home and may be fused with it as far as the two go.

    With `copies` those that hold copies as well.
    """
    n, m = len(fusion.home), len(fusion.copied)
    most = len(graph.inputs) + m
    for c in range(m):
        most += graph.input_start[fusion.copied[c] + 1] - graph.input_start[fusion.copied[c]]
    found, reading, count = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), 0
    has_copy = np.zeros(n, dtype=np.bool_)
    has_copy[fusion.copied] = True
    for k in range(n + m):
        one = k if k < n else fusion.copied[k - n]
        region = fusion.home[k] if k < n else fusion.holder[k - n]
        if graph.kind[one] != _FREE:
            continue
        for e in range(graph.input_start[one], graph.input_start[one + 1]):
            source = graph.inputs[e]
            if graph.kind[source] == _OPAQUE:
                continue
            if fusion.home[source] != region and not (has_copy[source] and _holds(fusion, region, source)):
                found[count], reading[count] = source, region
                count += 1
    if copies:
        found[count : count + m], reading[count : count + m] = fusion.copied, fusion.holder
        count += m
    return found[:count], reading[:count]


@outer
def merged(fusion: Fusion, kept: int, gone: int) -> tuple[Numbers, Numbers, Numbers]:
    """Home, copied and holder with the region `gone` as part of `kept`."""
    home = np.where(fusion.home == gone, kept, fusion.home)
    copied, holder, count = fusion.copied.copy(), fusion.holder.copy(), 0
    for c in range(len(copied)):
        one, region = fusion.copied[c], kept if fusion.holder[c] == gone else fusion.holder[c]
        twice = home[one] == region
        for other in range(count if region == kept and not twice else 0):
            twice = twice or (copied[other] == one and holder[other] == region)
        if not twice:
            copied[count], holder[count] = one, region
            count += 1
    return home, copied[:count], holder[:count]


@outer
def signatures(graph: Arrays, fusion: Fusion, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number for each region, made of what it computes and of what leaves it; 0 where there is no region.

    Args:
        graph: Of the operators.
        fusion: Of them.
        words: Random numbers of an operator that is computed, and of one whose result leaves, [n, 2].
    """
    found, has_copy = np.zeros(len(fusion.home), dtype=np.uint64), np.zeros(len(fusion.home), dtype=np.bool_)
    for c in range(len(fusion.copied)):
        has_copy[fusion.copied[c]] = True
        found[fusion.holder[c]] += words[fusion.copied[c], 0]
    for one in range(len(fusion.home)):
        region = fusion.home[one]
        found[region] += words[one, 0]
        if _leaves(graph, fusion, has_copy, one):
            found[region] += words[one, 1]
    return found


@outer
def launch_order(graph: Arrays, fusion: Fusion) -> Numbers:
    """Regions in the order in which one device works them off, first ready first; fewer than there are: a cycle."""
    n, m = len(fusion.home), len(fusion.copied)
    member, following = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    copy, further = np.full(n, -1, dtype=np.int64), np.full(m, -1, dtype=np.int64)
    waits, order, count = np.zeros(n, dtype=np.int64), np.empty(n, dtype=np.int64), 0
    for c in range(m):
        further[c], copy[fusion.copied[c]] = copy[fusion.copied[c]], c
        waits[fusion.holder[c]] += 1
    for one in range(n - 1, -1, -1):
        region = fusion.home[one]
        following[one], member[region] = member[region], one
        for e in range(graph.input_start[one], graph.input_start[one + 1]):
            if _waits(fusion, copy, further, graph.inputs[e], region):
                waits[region] += 1
    for one in range(n):
        region = fusion.home[one]
        if waits[region] == 0:
            # Marked, so that it is not queued again at another of its operators.
            order[count], waits[region] = region, -1
            count += 1
    done = 0
    while done < count:
        region, before = order[done], count
        done += 1
        one = member[region]
        while one >= 0:
            for e in range(graph.reader_start[one], graph.reader_start[one + 1]):
                other = fusion.home[graph.readers[e]]
                if _waits(fusion, copy, further, one, other):
                    waits[other] -= 1
                    if waits[other] == 0:
                        order[count] = other
                        count += 1
            c = copy[one]
            while c >= 0:
                other = fusion.holder[c]
                waits[other] -= 1
                if waits[other] == 0:
                    order[count] = other
                    count += 1
                c = further[c]
            one = following[one]
        # What is ready at the same time goes by number.
        order[before:count].sort()
    return order[:count]


@inner
def _waits(fusion: Fusion, copy: Numbers, further: Numbers, operator: int, region: int) -> bool:
    """Whether an operator in the region reads the other one from its home."""
    if fusion.home[operator] == region:
        return False
    c = copy[operator]
    while c >= 0:
        if fusion.holder[c] == region:
            return False
        c = further[c]
    return True


@outer
def gradients_ready(graph: Arrays, fusion: Fusion, seconds: Vector) -> Vector:
    """When each gradient is there, given the seconds of the regions by number, [g]."""
    ends, now = np.zeros(len(seconds)), 0.0
    for region in launch_order(graph, fusion):
        now += seconds[region]
        ends[region] = now
    return ends[fusion.home[graph.gradients]]
