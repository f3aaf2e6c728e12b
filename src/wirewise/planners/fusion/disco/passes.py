"""How often a fused kernel computes each of its operators, as compilers that inline do.

A reduction ends a loop; what reads its result runs in a later one. Values that both loops need are computed in both,
unless they leave the region or are expensive enough that Inductor stores them. So a region may take longer than its
operators one by one, though it moves fewer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wirewise.trace.operators import Operator, OperatorGraph

__all__ = ["Loops", "loops_of", "name_of", "stored_between"]

_SHAPE_ONLY = frozenset(
    "ones_like zeros_like full_like empty_like rand_like new_zeros new_ones new_full fill".split()
)
"""Operators that read no values."""

_LOSS, _LOSS_BACKWARD = "nll_loss_forward", "nll_loss_backward"
"""The latter reads of the former only how many labels count, and of the logarithms only their shape."""

_LEAVES_LOSS = _SHAPE_ONLY | {_LOSS_BACKWARD}
"""Readers of a loss that do not read its value."""

_LOOPS = {
    "_softmax": 2,
    "_log_softmax": 2,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
    "native_layer_norm": 2,
    "native_group_norm": 2,
    "_native_batch_norm_legit_functional": 2,
    "native_layer_norm_backward": 3,
    "native_group_norm_backward": 3,
    "native_batch_norm_backward": 2,
}
"""Loops of operators that reduce and use the result themselves."""

_STORED = frozenset("exp sigmoid silu silu_backward softplus softplus_backward _softmax _log_softmax".split())
_MOST_READS = 4
"""Operators that Inductor does not compute twice, nor what reads more values (`should_realize_on_reuse`)."""

_JOINED = "cat"
"""Ends a loop, too: what it joins is written side by side."""


class Loops(NamedTuple):
    """Loops of one operator of a region."""

    live: bool
    """Whether anything that leaves the region depends on its values."""
    first: int
    """Loop in which it is computed first."""
    computed: int
    """Loops that compute it."""


def name_of(kind: str) -> str:
    """Name of a kind: "mul" of "aten.mul.Tensor"."""
    return kind.split(".")[1] if kind.count(".") > 1 else kind


def loops_of(graph: OperatorGraph, operators: tuple[int, ...], outputs: tuple[int, ...]) -> dict[int, Loops]:
    """Loops of the operators of a region, by number.

    Args:
        graph: Graph of the operators.
        operators: The region's, ascending.
        outputs: Those whose results leave it.
    """
    first, leaving = _first(graph, operators), set(outputs)
    readers: dict[int, list[int]] = {i: [] for i in operators}
    for one in operators:
        for i in graph.operators[one].inputs:
            if i in readers:
                readers[i].append(one)
    wanting: dict[int, list[int]] = {}
    for i in reversed(operators):
        wanting[i] = [
            r
            for r in readers[i]
            if (r in leaving or wanting[r]) and not _shape_only(graph, r, i, readers, leaving)
        ]
    stored = _stored(graph, operators, wanting, leaving)
    found, needed = dict[int, Loops](), dict[int, set[int]]()
    for i in reversed(operators):
        loops = {loop for r in wanting[i] for loop in _needs(graph.operators[r], first[r], needed[r])}
        needed[i] = {first[i]} if i in stored or not loops else loops
        found[i] = Loops(i in leaving or bool(wanting[i]), first[i], len(needed[i]))
    return found


def stored_between(
    graph: OperatorGraph, operators: tuple[int, ...], leaving: set[int], loops: Mapping[int, Loops]
) -> set[int]:
    """Operators of a region whose results do not leave it, but are kept by one loop for a later one."""
    return {
        i
        for reader in operators
        for i in graph.operators[reader].inputs
        if loops[reader].live and i in loops and i not in leaving
        if loops[i].first < loops[reader].first and loops[i].computed == 1
    }


def _stored(
    graph: OperatorGraph, operators: tuple[int, ...], wanting: Mapping[int, list[int]], leaving: set[int]
) -> set[int]:
    """Operators whose results are not computed again: those that leave, or that Inductor stores."""
    found: set[int] = set()
    reads: dict[int, set[int]] = {}
    costly: dict[int, bool] = {}
    for i in operators:
        one = graph.operators[i]
        name = name_of(one.kind)
        inlined = [j for j in one.inputs if j in reads and j not in found]
        reads[i] = {j for j in one.inputs if j not in inlined}.union(*(reads[j] for j in inlined))
        costly[i] = name in _STORED or any(costly[j] for j in inlined)
        again = len(wanting[i]) > 1 and (costly[i] or len(reads[i]) > _MOST_READS)
        if i in leaving or one.category == "matmul" or name == _JOINED or (again and one.category != "view"):
            found.add(i)
    return found


def _first(graph: OperatorGraph, operators: tuple[int, ...]) -> dict[int, int]:
    first: dict[int, int] = {}
    for i in operators:
        before = [j for j in graph.operators[i].inputs if j in first]
        first[i] = max((first[j] + _ends(graph.operators[j]) for j in before), default=0)
    return first


def _ends(one: Operator) -> int:
    """Loops between an operator's first one and that of its readers."""
    name = name_of(one.kind)
    return (
        _LOOPS[name] - 1
        if name in _LOOPS
        else int(one.category in ("reduction", "matmul") or name == _JOINED)
    )


def _shape_only(
    graph: OperatorGraph, reader: int, read: int, readers: Mapping[int, list[int]], leaving: set[int]
) -> bool:
    """Whether what a region makes of an operator does not depend on the values that it reads of another."""
    name = name_of(graph.operators[reader].kind)
    if name == _LOSS:
        return reader not in leaving and all(
            name_of(graph.operators[r].kind) in _LEAVES_LOSS for r in readers[reader]
        )
    logarithms = name == _LOSS_BACKWARD and name_of(graph.operators[read].kind) == "_log_softmax"
    return logarithms or name in _SHAPE_ONLY


def _needs(one: Operator, first: int, own: set[int]) -> set[int]:
    """Loops in which an operator reads its inputs."""
    name = name_of(one.kind)
    if name in _LOOPS:
        return set(range(first, first + _LOOPS[name]))
    return {first} if one.category in ("reduction", "matmul") else own
