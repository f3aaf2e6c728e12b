"""A graph and its fusion as arrays, with compiled queries about regions.

Every operator has a home region, in which it is computed for all its readers; the least operator at home in a region
is the region's number. Other regions may hold copies: a copy serves its own region only. A region that holds a copy
of an operator is launched after that operator's home.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer
from wirewise.trace.operators import FusionGraph

__all__ = [
    "FREE",
    "OPAQUE",
    "Arrays",
    "Chains",
    "Fusion",
    "arrays",
    "chains",
    "describe",
    "holds",
    "is_legal",
    "is_read",
    "signatures",
]

Vector = NDArray[np.float64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

FREE, MATMUL, OPAQUE = 0, 1, 2
"""Fused with anything; with what follows it; with nothing."""


class Arrays(NamedTuple):
    """Graph of n operators with g gradients."""

    input_start: Numbers
    """First input of each operator in `inputs`, [n + 1]."""
    inputs: Numbers
    reader_start: Numbers
    """First reader of each operator in `readers`, [n + 1]."""
    readers: Numbers
    kind: Numbers
    """Kind of each operator: 0: can be fused with anything, 1: matmul, 2: opaque, [n]."""
    kept: Flags
    """Whether the result always leaves its region, as a gradient or as read by no operator, [n]."""
    gradients: Numbers
    """Operators whose outputs are gradients, [g]."""
    size_bytes: Vector
    """Bytes of the gradients, [g]."""


class Fusion(NamedTuple):
    """Assignment of operators to regions, with copies."""

    home: Numbers
    """Number of the region of each operator, [n]."""
    copied: Numbers
    """Operators that are computed in other regions too, [copies]."""
    holder: Numbers
    """Region of each copy, or -1 for a removed copy, [copies]."""


class Chains(NamedTuple):
    """Linked lists of the copies of each operator, for fast lookup."""

    first: Numbers
    """Index of each operator's first copy, or -1, [n]."""
    following: Numbers
    """Index of the next copy of the same operator, or -1, [copies]."""


def arrays(graph: FusionGraph) -> Arrays:
    """Convert a graph to arrays."""
    kinds = {"matmul": MATMUL, "opaque": OPAQUE}
    readers: list[list[int]] = [[] for _ in graph.operators]
    for number, one in enumerate(graph.operators):
        for i in one.inputs:
            readers[i].append(number)
    sizes = [graph.operators[i].output_bytes for i in graph.gradients]
    return Arrays(
        *_rows([one.inputs for one in graph.operators]),
        *_rows(readers),
        np.array([kinds.get(one.category, FREE) for one in graph.operators], dtype=np.int64),
        np.array([bool(one.gradient) or not readers[i] for i, one in enumerate(graph.operators)]),
        np.array(graph.gradients, dtype=np.int64),
        np.array(sizes, dtype=np.float64),
    )


def _rows(lists: list[tuple[int, ...]] | list[list[int]]) -> tuple[Numbers, Numbers]:
    start = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return start, np.array([i for one in lists for i in one], dtype=np.int64)


@outer
def chains(fusion: Fusion) -> Chains:
    """Build the lists of copies by operator, in order."""
    found = Chains(np.full(len(fusion.home), -1), np.empty(len(fusion.copied), dtype=np.int64))
    _chain(fusion, found)
    return found


@inner
def _chain(fusion: Fusion, found: Chains) -> None:
    for c in range(len(fusion.copied) - 1, -1, -1):
        found.following[c], found.first[fusion.copied[c]] = found.first[fusion.copied[c]], c


@inner
def holds(fusion: Fusion, copies: Chains, region: int, operator: int) -> bool:
    """Whether the region computes the operator, at home or as a copy."""
    if fusion.home[operator] == region:
        return True
    c = copies.first[operator]
    while c >= 0:
        if fusion.holder[c] == region:
            return True
        c = copies.following[c]
    return False


@inner
def is_read(graph: Arrays, fusion: Fusion, copies: Chains, operator: int) -> bool:
    """Whether a region without the operator contains a reader of it."""
    for e in range(graph.reader_start[operator], graph.reader_start[operator + 1]):
        reader = graph.readers[e]
        if not holds(fusion, copies, fusion.home[reader], operator):
            return True
        c = copies.first[reader]
        while c >= 0:
            if fusion.holder[c] >= 0 and not holds(fusion, copies, fusion.holder[c], operator):
                return True
            c = copies.following[c]
    return False


@inner
def is_legal(graph: Arrays, inside: Flags) -> bool:
    """Whether operators may run as one region.

    Opaque operators run alone. A matmul can be fused with its consumers, not with its inputs or another matmul.
    """
    members = opaque = matmuls = 0
    for one in range(len(inside)):
        if not inside[one]:
            continue
        members += 1
        if graph.kind[one] == OPAQUE:
            opaque += 1
        elif graph.kind[one] == MATMUL:
            matmuls += 1
            for e in range(graph.input_start[one], graph.input_start[one + 1]):
                if inside[graph.inputs[e]]:
                    return False
    return matmuls < 2 and (opaque == 0 or members == 1)


@outer
def describe(graph: Arrays, fusion: Fusion, region: int) -> tuple[Numbers, Numbers]:
    """Operators of a region, ascending, and those whose results leave it."""
    inside, copies = fusion.home == region, chains(fusion)
    leaving = inside & graph.kept
    for one in np.flatnonzero(inside & ~graph.kept):
        leaving[one] = is_read(graph, fusion, copies, one)
    inside[fusion.copied[fusion.holder == region]] = True
    return np.flatnonzero(inside), np.flatnonzero(leaving)


@outer
def signatures(graph: Arrays, fusion: Fusion, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash of each region's operators and outputs; 0 for empty regions.

    Args:
        graph: Graph of the operators.
        fusion: Fusion of the operators.
        words: Random numbers for an operator that is computed, and for one whose result leaves, [n, 2].
    """
    found = np.zeros(len(fusion.home), dtype=np.uint64)
    _sign(graph, fusion, chains(fusion), words, found)
    return found


@inner
def _sign(
    graph: Arrays, fusion: Fusion, copies: Chains, words: NDArray[np.uint64], found: NDArray[np.uint64]
) -> None:
    for c in range(len(fusion.copied)):
        found[fusion.holder[c]] += words[fusion.copied[c], 0]
    for one in range(len(fusion.home)):
        region = fusion.home[one]
        found[region] += words[one, 0]
        if graph.kept[one] or is_read(graph, fusion, copies, one):
            found[region] += words[one, 1]
