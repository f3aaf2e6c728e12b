"""Input features of an estimator for a region: a small graph with a feature row per operator."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.fusion.disco.passes import (
    LAST_CACHE,
    OWN_CACHE,
    Loop,
    OperatorLoops,
    cache_overflow,
    loops_of,
    name_of,
    stored_results,
    trip_count,
    walks_of,
)
from wirewise.trace.operators import CATEGORIES, FusionGraph, Operator

__all__ = ["FEATURES", "PRIORS", "RegionGraph", "region_graph"]

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
_OWN, _LAYOUT, _REGION, _LOOP, _WALK, _LEVELS = 17, 12, 4, 8, 12, 5
FEATURES = _OWN + _LAYOUT + _REGION + _LOOP + len(CATEGORIES) + len(_WORK) + _WALK + 2 * _LEVELS
"""Number of features of a node."""
PRIORS = 7
"""Prior estimates of a node's cost, whose weighted sum is the prediction: own time, values walked, bytes that enter or
leave the region, values in scalar loops, bytes from the last-level cache, bytes from memory, values that one loop
stores for another."""

_UNMEASURED_S, _DISPATCH_S = 5e-6, 2e-6
"""Own time of an operator that was not measured, and what of it only choosing the kernel takes."""
_S_PER_VALUE = 3e-10
"""Seconds per value in a loop that uses vectors."""
_MOST_S_PER_VALUE = 2e-9
"""Most seconds per value that count of an operator's own time: eager kernels of some layouts take many times what a
fused loop takes."""
_S_PER_LONE_VALUE = 1e-9
"""Seconds per value in a loop that uses no vectors."""
_S_PER_BYTE, _S_PER_NARROW_ELEMENT = 5e-11, 2e-9
"""Seconds of a byte, and of a narrow element, that crosses the region's border; narrow are those of less than four
bytes, which keep loops from vectors."""


_CACHES = (2**15, 2**18, OWN_CACHE, 2**23, LAST_CACHE)
_LANES = 16
"""Values of the widest vectors."""
_UNWRITTEN = frozenset("empty_like new_empty empty".split())


class RegionGraph(NamedTuple):
    """Region as input of the network; its n nodes are its operators, then the outside operators that it reads."""

    nodes: Array
    """Features of each node, [n, FEATURES]."""
    kinds: tuple[str, ...]
    """Kinds of the nodes, without namespace and overload."""
    reads: NDArray[np.bool_]
    """Whether a node (row) reads another (column), [n, n]."""
    prior_s: Array
    """Prior estimates of each node, [n, PRIORS]; own times and values count once for each loop."""


class _Region(NamedTuple):
    """Properties that the operators of a region have in common."""

    graph: FusionGraph
    operators: tuple[int, ...]
    leaving: set[int]
    loops: Mapping[int, OperatorLoops]
    held: Mapping[int, int]
    """Bytes of results."""
    used: set[int]
    """Outside operators whose values it reads."""
    stored: set[int]
    """Operators whose results one loop keeps for another."""
    walks: Mapping[int, Loop]
    """Walks by operator."""
    moved_bytes: int
    """Read and written."""

    def own_s(self, number: int) -> float:
        one = self.graph.operators[number]
        working = number in self.loops and self.loops[number].live and one.category != "view"
        return (one.time_s or _UNMEASURED_S) if working else 0.0


def region_graph(graph: FusionGraph, operators: tuple[int, ...], outputs: tuple[int, ...]) -> RegionGraph:
    """Build the network input of a region.

    Args:
        graph: Graph of the operators; without a measured time, an operator counts as one launch.
        operators: Indices of the region's operators, ascending.
        outputs: Operators whose results leave the region.
    """
    inside = set(operators)
    outside = dict.fromkeys(i for one in operators for i in graph.operators[one].inputs if i not in inside)
    members = (*operators, *outside)
    place = {number: i for i, number in enumerate(members)}
    reads = np.zeros((len(members), len(members)), dtype=np.bool_)
    for one in operators:
        reads[place[one], [place[i] for i in graph.operators[one].inputs]] = True
    loops = loops_of(graph, operators, outputs)
    used = {i for one in operators if loops[one].live for i in graph.operators[one].inputs if i not in inside}
    held, leaving = _held_bytes(graph, members), set(outputs)
    stored = stored_results(graph, operators, leaving, loops)
    moved = sum(held[i] for i in used | leaving | stored)
    moved += sum(graph.operators[i].outside_bytes for i in operators)
    walks = walks_of(graph, operators, leaving | stored, loops, held)
    region = _Region(graph, operators, leaving, loops, held, used, stored, walks, moved)
    kinds = tuple(name_of(graph.operators[i].kind) if i in inside else "outside" for i in members)
    prior = np.array([_prior_s(region, number) for number in members], dtype=np.float32)
    return RegionGraph(_rows(region, members, reads.sum(0).tolist()), kinds, reads, prior)


def _held_bytes(graph: FusionGraph, members: tuple[int, ...]) -> dict[int, int]:
    """Bytes of results; of a view those that it shows, which is less than its size where it repeats them."""
    found: dict[int, int] = {}
    for i in sorted(members):
        one = graph.operators[i]
        if name_of(one.kind) in _UNWRITTEN:
            found[i] = 0
            continue
        shown = one.outside_bytes + sum(found.get(j, graph.operators[j].output_bytes) for j in one.inputs)
        found[i] = min(one.output_bytes, shown) if one.category == "view" else one.output_bytes
    return found


def _prior_s(region: _Region, number: int) -> tuple[float, ...]:
    one, own_s, held = region.graph.operators[number], region.own_s(number), region.held[number]
    computed = region.loops[number].computed if number in region.loops else 0
    values = trip_count(one) * computed if own_s and one.category != "matmul" else 0
    crosses = number in region.leaving or number in region.used
    stored, lone = number in region.stored, number in region.walks and region.walks[number].is_scalar
    if one.category not in ("matmul", "opaque"):
        own_s = min(own_s, _UNMEASURED_S + values * _MOST_S_PER_VALUE)
    narrow = one.output_bytes < 4 * one.elements
    border_s = one.elements * _S_PER_NARROW_ELEMENT if narrow else held * _S_PER_BYTE
    moved_s = (crosses + 2 * stored) * held * _S_PER_BYTE
    return (
        max(own_s - _DISPATCH_S, own_s / 10) * computed,
        0.0 if lone else values * _S_PER_VALUE,
        border_s if crosses else 0.0,
        values * _S_PER_LONE_VALUE if lone else 0.0,
        moved_s * cache_overflow(region.moved_bytes, OWN_CACHE),
        moved_s * cache_overflow(region.moved_bytes, LAST_CACHE),
        held * _S_PER_BYTE if stored else 0.0,
    )


def _rows(region: _Region, members: tuple[int, ...], read_by: list[int]) -> Array:
    operators = region.graph.operators
    crossing = sum(region.held[i] for i in region.used | region.leaving)
    crossing += sum(operators[i].outside_bytes for i in region.operators)
    total_s = sum(region.own_s(i) for i in region.operators)
    most = max(operators[i].elements for i in region.operators)
    together, loops = _together(region), len(set(region.walks.values()))
    found = []
    for number, readers in zip(members, read_by, strict=True):
        one, own_s = operators[number], region.own_s(number)
        inside = number in region.loops
        whole = [
            _log(crossing),
            log(own_s / (total_s + 1e-9) + 0.01) / 2 if inside else 0.0,
            log((one.elements + 1) / (most + 1)) / 4,
            log((own_s * 1e9 + 10) / (trip_count(one) + 64)) if inside else 0.0,
        ]
        layout = _layout(one) if inside else [0.0] * _LAYOUT
        work = _work(one) if inside else [0.0] * (len(CATEGORIES) + len(_WORK))
        own = _features(region, number, readers)
        found.append(
            [
                *own,
                *layout,
                *whole,
                *together.get(number, [0.0] * _LOOP),
                *work,
                *_walk(region, number, loops),
                *(cache_overflow(region.moved_bytes, cache) for cache in _CACHES),
                *(cache_overflow(region.held[number], cache) for cache in _CACHES),
            ]
        )
    return np.array(found, dtype=np.float32)


def _features(region: _Region, number: int, read_by: int) -> list[float]:
    one, own_s = region.graph.operators[number], region.own_s(number)
    inside, loops = number in region.loops, region.loops.get(number, OperatorLoops(False, 0, 0))
    read = one.outside_bytes + sum(region.held[i] for i in one.inputs) if inside else 0
    written, moved = region.held[number], read + region.held[number]
    return [
        *(_log(value) for value in (one.elements, written, read, one.outside_bytes, one.flops)),
        log(own_s / 1e-6 + 0.01) / 4,
        log((own_s * 1e9 + 10) / (moved + 64)),
        log((read + 64) / (written + 64)) / 2,
        log((one.output_bytes + 1) / (one.elements + 1)),
        number in region.leaving,
        loops.live,
        float(loops.first),
        float(loops.computed),
        len(one.inputs) / 2,
        read_by / 2,
        float(moved > 2**20),
        float(moved > 2**23),
    ]


def _work(one: Operator) -> list[float]:
    group = _GROUPS.get(name_of(one.kind))
    return [
        *(float(one.category == name) for name in CATEGORIES),
        *(float(group == name) for name in _WORK),
    ]


def _layout(one: Operator) -> list[float]:
    layout = one.layout
    return [
        layout.inner > 0,
        log(layout.inner + 1) / 3,
        layout.inner < 8,
        layout.inner % 8 == 0,
        layout.inner >= 256,
        log(layout.reduced) / 4,
        layout.reduces_inner,
        layout.reduced > 1 and not layout.reduces_inner,
        min(layout.strided, 3),
        min(layout.repeated, 3),
        layout.least_bytes < 4,
        layout.most_bytes > 4,
    ]


def _together(region: _Region) -> dict[int, list[float]]:
    """Figures of the operators that one loop computes: what of any of them may keep the whole loop from vectors."""
    found: dict[int, list[float]] = {}
    for members in {walk.operators for walk in region.walks.values()}:
        layouts = [region.graph.operators[i].layout for i in members]
        row = [
            float(any(one.strided for one in layouts)),
            float(any(one.most_bytes > 4 for one in layouts)),
            float(any(one.least_bytes < 4 for one in layouts)),
            float(any(one.reduced > 1 and one.reduces_inner for one in layouts)),
            float(any(one.reduced > 1 and not one.reduces_inner for one in layouts)),
            log(len(members)),
            log(1 + len(region.leaving.intersection(members))),
            float(any(one.most_bytes > 4 and one.reduced > 1 for one in layouts)),
        ]
        found |= dict.fromkeys(members, row)
    return found


def _walk(region: _Region, number: int, loops: int) -> list[float]:
    """Figures of the loop that computes an operator, one of so many, and what of it is kept for another one."""
    if number not in region.walks:
        return [0.0] * _WALK
    walk = region.walks[number]
    return [
        walk.strided_share,
        walk.is_scalar,
        log(1 + walk.strided),
        log(1 + walk.accesses),
        _log(walk.moved_bytes),
        log((walk.moved_bytes + 64) / (4 * walk.values + 64)) / 2,
        _log(walk.values),
        walk.inner / (-(-walk.inner // _LANES) * _LANES),
        walk.inner < _LANES,
        log(loops),
        number in region.stored,
        float(region.loops[number].first),
    ]


def _log(value: float) -> float:
    return log(value + 64) / 4 - 2
