"""What an estimator is told about a region: a small graph with a row of figures for each operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.fusion.disco.graph import CATEGORIES, Operator, OperatorGraph
from wirewise.planners.fusion.disco.passes import Loops, loops_of, name_of

__all__ = ["FEATURES", "RegionGraph", "region_graph"]

Array = NDArray[np.float32]

_WORK = {
    "root": "div sqrt rsqrt reciprocal",
    "exponential": "exp sigmoid silu softplus elu sigmoid_backward silu_backward softplus_backward elu_backward",
    "transcendental": "tanh erf gelu gelu_backward log log1p cos sin pow",
    "moving": "cat stack clone copy slice_backward select_backward slice_scatter constant_pad_nd flip",
    "gathering": "index embedding gather index_select",
    "convolution": "convolution convolution_backward",
}
_GROUPS = {name: group for group, names in _WORK.items() for name in names.split()}
FEATURES = 17 + len(CATEGORIES) + len(_WORK)
"""Of a node."""

_UNMEASURED_S, _DISPATCH_S = 5e-6, 2e-6
"""Own time of an operator that was not measured, and what of it only choosing the kernel takes."""
_S_PER_BYTE, _S_PER_NARROW_ELEMENT = 5e-11, 2e-9
"""Of what crosses the region's border; narrow are those of less than four bytes, which keep loops from vectors."""


class RegionGraph(NamedTuple):
    """A region as the network sees it; its n nodes are its operators, then the outside ones that it reads."""

    nodes: Array
    """[n, FEATURES]."""
    kinds: tuple[str, ...]
    """Of the nodes, without namespace and overload."""
    reads: NDArray[np.bool_]
    """Whether a node (row) reads another (column), [n, n]."""
    prior_s: Array
    """Own times, once for each loop, and what crossing the region's border takes, [n]."""


def region_graph(graph: OperatorGraph, operators: tuple[int, ...], outputs: tuple[int, ...]) -> RegionGraph:
    """What the network is told about a region.

    Args:
        graph: Of the operators; one without a measured time counts as a launch.
        operators: Numbers of the region's, ascending.
        outputs: Those whose results leave it.
    """
    inside = set(operators)
    outside = dict.fromkeys(i for one in operators for i in graph.operators[one].inputs if i not in inside)
    members = (*operators, *outside)
    place = {number: i for i, number in enumerate(members)}
    reads = np.zeros((len(members), len(members)), dtype=np.bool_)
    for one in operators:
        reads[place[one], [place[i] for i in graph.operators[one].inputs]] = True
    loops, leaving = loops_of(graph, operators, outputs), set(outputs)
    held = _held_bytes(graph, members)
    used = {i for one in operators if loops[one].live for i in graph.operators[one].inputs if i not in inside}
    rows, prior = [], []
    for number, read_by in zip(members, reads.sum(0).tolist(), strict=True):
        own_s = _own_s(graph, number, loops)
        rows.append(_features(graph, number, loops.get(number), held, own_s, number in leaving, read_by))
        computed = loops[number].computed if number in loops else 0
        crosses = number in leaving or number in used
        crossing_s = _crossing_s(graph.operators[number], held[number]) if crosses else 0.0
        prior.append(max(own_s - _DISPATCH_S, own_s / 10) * computed + crossing_s)
    kinds = tuple(name_of(graph.operators[i].kind) if i in inside else "outside" for i in members)
    return RegionGraph(np.array(rows, dtype=np.float32), kinds, reads, np.array(prior, dtype=np.float32))


def _own_s(graph: OperatorGraph, number: int, loops: Mapping[int, Loops]) -> float:
    one = graph.operators[number]
    working = number in loops and loops[number].live and one.category != "view"
    return (one.time_s or _UNMEASURED_S) if working else 0.0


def _crossing_s(one: Operator, held_bytes: int) -> float:
    narrow = one.output_bytes < 4 * one.elements
    return one.elements * _S_PER_NARROW_ELEMENT if narrow else held_bytes * _S_PER_BYTE


def _held_bytes(graph: OperatorGraph, members: tuple[int, ...]) -> dict[int, int]:
    """Bytes of results; of a view those that it shows, which is less than its size where it repeats them."""
    found: dict[int, int] = {}
    for i in sorted(members):
        one = graph.operators[i]
        shown = one.outside_bytes + sum(found.get(j, graph.operators[j].output_bytes) for j in one.inputs)
        found[i] = min(one.output_bytes, shown) if one.category == "view" else one.output_bytes
    return found


def _features(
    graph: OperatorGraph,
    number: int,
    loops: Loops | None,
    held: Mapping[int, int],
    own_s: float,
    leaves: bool,
    read_by: int,
) -> list[float]:
    one, inside = graph.operators[number], loops is not None
    loops = loops or Loops(False, 0, 0)
    read = one.outside_bytes + sum(held[i] for i in one.inputs) if inside else 0
    written, moved = held[number], read + held[number]
    group = _GROUPS.get(name_of(one.kind))
    return [
        *(_log(value) for value in (one.elements, written, read, one.outside_bytes, one.flops)),
        float(np.log(own_s / 1e-6 + 0.01)) / 4,
        float(np.log((own_s * 1e9 + 10) / (moved + 64))),
        float(np.log((read + 64) / (written + 64))) / 2,
        float(np.log((one.output_bytes + 1) / (one.elements + 1))),
        leaves,
        loops.live,
        float(loops.first),
        float(loops.computed),
        len(one.inputs) / 2,
        read_by / 2,
        float(moved > 2**20),
        float(moved > 2**23),
        *(inside and one.category == name for name in CATEGORIES),
        *(inside and group == name for name in _WORK),
    ]


def _log(value: float) -> float:
    return float(np.log(value + 64)) / 4 - 2
