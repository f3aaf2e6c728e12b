"""The loops of a fused kernel: what each goes through, reads and writes.

Operators that compute as many values in the same pass share a loop. Inductor makes a loop without vectors where 12 % or
more of what it does are reads and writes of values that do not lie next to each other (`TilingSelect`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import NamedTuple

from wirewise.planners.fusion.disco.passes import Loops, name_of
from wirewise.trace.operators import Operator, OperatorGraph

__all__ = ["LAST_CACHE", "OWN_CACHE", "Walk", "beyond", "walked", "walks_of"]

OWN_CACHE, LAST_CACHE = 2**20, 2**25
"""Bytes of a core's own cache and of the one that cores share, of common servers."""

_MOST_STRIDED = 0.12
_STEPS = 3
"""Instructions of an operator in Inductor's intermediate language, about."""


class Walk(NamedTuple):
    """A loop."""

    operators: tuple[int, ...]
    values: int
    """Number of values that it goes through."""
    inner: int
    """Length of its innermost dimension."""
    accesses: int
    """Tensors that it reads or writes."""
    strided: int
    """Number of tensors that it reads whose values do not lie next to each other."""
    moved_bytes: int
    """Read and written."""

    @property
    def strided_share(self) -> float:
        """Strided share of all that it does."""
        return self.strided / (_STEPS * len(self.operators) + self.accesses)

    @property
    def lone(self) -> bool:
        """Whether it goes value by value."""
        return self.strided_share >= _MOST_STRIDED


def walked(one: Operator) -> int:
    """Values that an operator's loop goes through."""
    return one.elements * (one.layout.reduced if one.category == "reduction" else 1)


def walks_of(
    graph: OperatorGraph,
    operators: tuple[int, ...],
    written: set[int],
    loops: Mapping[int, Loops],
    held: Mapping[int, int],
) -> dict[int, Walk]:
    """The first loop of each operator of a region that has one.

    Args:
        graph: Graph of the operators.
        operators: The region's, ascending.
        written: Those whose results are written to memory.
        loops: Loops of the operators.
        held: Bytes of results, of outside operators too.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for i in operators:
        one = graph.operators[i]
        if loops[i].live and one.category not in ("view", "matmul"):
            groups.setdefault((loops[i].first, walked(one)), []).append(i)
    found: dict[int, Walk] = {}
    for (_, values), members in groups.items():
        inside, layouts = set(members), [graph.operators[i].layout for i in members]
        reads = {j for i in members for j in graph.operators[i].inputs} - inside
        writes = inside & written
        backwards = sum(name_of(graph.operators[i].kind) == "flip" for i in members)
        walk = Walk(
            operators=tuple(members),
            values=values,
            inner=max(1, *(one.inner for one in layouts)),
            accesses=len(reads) + len(writes),
            strided=backwards + sum(min(one.strided, 3) for one in layouts),
            moved_bytes=sum(held[i] for i in reads | writes)
            + sum(graph.operators[i].outside_bytes for i in members),
        )
        found |= dict.fromkeys(members, walk)
    return found


def beyond(size_bytes: float, cache: int) -> float:
    """How far bytes are from a cache: 0 where they fill half of it, 1 where they fill it twice."""
    return min(max(log(max(size_bytes, 1) / cache) / log(4) + 0.5, 0.0), 1.0)
