"""How often a fused kernel computes each of its operators, as compilers that inline do.

A reduction ends a loop; what reads its result runs in a later one. Values that both loops need are computed in both,
unless they leave the region or are expensive enough that Inductor stores them. So a region may take longer than its
operators one by one, though it moves fewer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wirewise.planners.fusion.disco.graph import Operator, OperatorGraph

__all__ = ["Loops", "loops_of", "name_of"]

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

_STORED = frozenset("exp sigmoid _softmax _log_softmax".split())
"""Operators that Inductor does not compute twice (`should_realize_on_reuse`)."""


class Loops(NamedTuple):
    """Of one operator of a region."""

    live: bool
    """Whether anything that leaves the region depends on its values."""
    first: int
    """Loop in which it is computed first."""
    computed: int
    """Loops that compute it."""


def name_of(kind: str) -> str:
    """Of "aten.mul.Tensor": "mul"."""
    return kind.split(".")[1] if kind.count(".") > 1 else kind


def loops_of(graph: OperatorGraph, operators: tuple[int, ...], outputs: tuple[int, ...]) -> dict[int, Loops]:
    """Of the operators of a region, by number.

    Args:
        graph: Of the operators.
        operators: The region's, ascending.
        outputs: Those whose results leave it.
    """
    first = _first(graph, operators)
    readers: dict[int, list[int]] = {i: [] for i in operators}
    for one in operators:
        for i in graph.operators[one].inputs:
            if i in readers:
                readers[i].append(one)
    leaving, found, needed = set(outputs), dict[int, Loops](), dict[int, set[int]]()
    for i in reversed(operators):
        name = name_of(graph.operators[i].kind)
        wanting = [r for r in readers[i] if found[r].live and not _shape_only(graph, r, i, readers, leaving)]
        loops = {loop for r in wanting for loop in _needs(graph.operators[r], first[r], needed[r])}
        stored = (
            i in leaving or graph.operators[i].category == "matmul" or (name in _STORED and len(loops) > 1)
        )
        needed[i] = {first[i]} if stored or not loops else loops
        found[i] = Loops(i in leaving or bool(wanting), first[i], len(needed[i]))
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
    return _LOOPS[name] - 1 if name in _LOOPS else int(one.category in ("reduction", "matmul"))


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
