"""Loops of a fused kernel: how often they compute each operator, and the reads and writes of each loop.

A reduction ends a loop; operators that read its result run in a later one. Values that both loops need are computed
in both, unless they leave the region or are expensive enough that Inductor stores them. So a region may take longer
than its operators one by one, though it moves fewer bytes.

Operators that compute equally many values in the same pass share a loop. Inductor does not vectorise a loop if 12 %
or more of its operations are strided reads and writes (`TilingSelect`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import NamedTuple

from wirewise.trace.operators import FusionGraph, Operator

__all__ = [
    "LAST_CACHE",
    "OWN_CACHE",
    "Loop",
    "OperatorLoops",
    "cache_overflow",
    "loops_of",
    "name_of",
    "stored_results",
    "trip_count",
    "walks_of",
]

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


OWN_CACHE, LAST_CACHE = 2**20, 2**25
"""Bytes of a core's own cache and of the one that cores share, of common servers."""

_MOST_STRIDED = 0.12
_STEPS = 3
"""Instructions of an operator in Inductor's intermediate language, about."""


class OperatorLoops(NamedTuple):
    """Loops of one operator of a region."""

    live: bool
    """Whether any output of the region depends on its values."""
    first: int
    """Loop in which it is computed first."""
    computed: int
    """Loops that compute it."""


def name_of(kind: str) -> str:
    """Short name of an operator kind: "mul" for "aten.mul.Tensor"."""
    return kind.split(".")[1] if kind.count(".") > 1 else kind


def loops_of(
    graph: FusionGraph, operators: tuple[int, ...], outputs: tuple[int, ...]
) -> dict[int, OperatorLoops]:
    """Loops of the operators of a region, by operator index.

    Args:
        graph: Graph of the operators.
        operators: Indices of the region's operators, ascending.
        outputs: Operators whose results leave the region.
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
    found, needed = dict[int, OperatorLoops](), dict[int, set[int]]()
    for i in reversed(operators):
        loops = {loop for r in wanting[i] for loop in _needs(graph.operators[r], first[r], needed[r])}
        needed[i] = {first[i]} if i in stored or not loops else loops
        found[i] = OperatorLoops(i in leaving or bool(wanting[i]), first[i], len(needed[i]))
    return found


def stored_results(
    graph: FusionGraph, operators: tuple[int, ...], leaving: set[int], loops: Mapping[int, OperatorLoops]
) -> set[int]:
    """Operators of a region whose results stay inside, but are stored by one loop for a later one."""
    return {
        i
        for reader in operators
        for i in graph.operators[reader].inputs
        if loops[reader].live and i in loops and i not in leaving
        if loops[i].first < loops[reader].first and loops[i].computed == 1
    }


def _stored(
    graph: FusionGraph, operators: tuple[int, ...], wanting: Mapping[int, list[int]], leaving: set[int]
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


def _first(graph: FusionGraph, operators: tuple[int, ...]) -> dict[int, int]:
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
    graph: FusionGraph, reader: int, read: int, readers: Mapping[int, list[int]], leaving: set[int]
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


class Loop(NamedTuple):
    """Loop of a fused kernel."""

    operators: tuple[int, ...]
    values: int
    """Number of values that it iterates over."""
    inner: int
    """Length of its innermost dimension."""
    accesses: int
    """Tensors that it reads or writes."""
    strided: int
    """Number of non-contiguous input tensors."""
    moved_bytes: int
    """Bytes read and written."""

    @property
    def strided_share(self) -> float:
        """Strided fraction of the loop's operations."""
        return self.strided / (_STEPS * len(self.operators) + self.accesses)

    @property
    def is_scalar(self) -> bool:
        """Whether the loop is scalar, not vectorised."""
        return self.strided_share >= _MOST_STRIDED


def trip_count(operator: Operator) -> int:
    """Number of values that an operator's loop iterates over."""
    return operator.elements * (operator.layout.reduced if operator.category == "reduction" else 1)


def walks_of(
    graph: FusionGraph,
    operators: tuple[int, ...],
    written: set[int],
    loops: Mapping[int, OperatorLoops],
    result_bytes: Mapping[int, int],
) -> dict[int, Loop]:
    """First loop of each operator of a region that has one.

    Args:
        graph: Graph of the operators.
        operators: Indices of the region's operators, ascending.
        written: Operators whose results are written to memory.
        loops: Loops of the operators.
        result_bytes: Result size of each operator in bytes, outside operators included.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for i in operators:
        one = graph.operators[i]
        if loops[i].live and one.category not in ("view", "matmul"):
            groups.setdefault((loops[i].first, trip_count(one)), []).append(i)
    found: dict[int, Loop] = {}
    for (_, values), members in groups.items():
        inside, layouts = set(members), [graph.operators[i].layout for i in members]
        reads = {j for i in members for j in graph.operators[i].inputs} - inside
        writes = inside & written
        backwards = sum(name_of(graph.operators[i].kind) == "flip" for i in members)
        walk = Loop(
            operators=tuple(members),
            values=values,
            inner=max(1, *(one.inner for one in layouts)),
            accesses=len(reads) + len(writes),
            strided=backwards + sum(min(one.strided, 3) for one in layouts),
            moved_bytes=sum(result_bytes[i] for i in reads | writes)
            + sum(graph.operators[i].outside_bytes for i in members),
        )
        found |= dict.fromkeys(members, walk)
    return found


def cache_overflow(size_bytes: float, cache: int) -> float:
    """Cache overflow of a size: 0 at half of the cache, 1 at twice the cache."""
    return min(max(log(max(size_bytes, 1) / cache) / log(4) + 0.5, 0.0), 1.0)
