"""Removal of switches and relays from a network without loss: their capacity becomes edges from rank to rank.

Edge splitting (Mader 1978; ForestColl, Zhao et al. 2024): capacity of an edge into a switch and of one out of it
becomes capacity of one edge past it. This is exact as long as no cut that limits the trees gets narrower. The even
split is tried first, as it keeps the most direct paths and so the lowest trees; only if it loses rate, capacity is
moved pair by pair, each time as much as all cuts allow.

An edge is a path here: numbers of edges of the network. Between ranks it is the network's route, as programs know
no other; ranks that take no part may be passed, in a transfer to them and one from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from wirewise.collective import Network
from wirewise.collective.bounds import tightest_cut
from wirewise.collective.maxflow import UNBOUNDED, Capacities, FlowGraph
from wirewise.collective.network import Use
from wirewise.planners.collective.deadline import Deadline
from wirewise.planners.collective.demands import pairs
from wirewise.planners.collective.forest.rates import ScaledNetwork, is_feasible_rate

__all__ = ["Paths", "as_capacities", "direct_paths", "paths_of"]

Paths = dict[tuple[int, ...], int]
"""Capacity by path."""
Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""A path into a vertex and one out of it."""


def direct_paths(
    network: Network,
    scaled: ScaledNetwork,
    supply: NDArray[np.int64],
    sinks: Sequence[int],
    group: Sequence[int],
    *,
    fixed_routes: bool = True,
    only_even: bool = False,
    useful: int = 0,
    deadline: Deadline,
) -> Paths | None:
    """Find paths between ranks of the group that carry all the trees, or as many as routes allow.

    Args:
        network: Network of the paths.
        scaled: Edges of the network in numbers of trees.
        supply: Units of trees that start at each vertex; [vertices].
        sinks: Vertices that all trees must reach.
        group: Ranks to keep.
        fixed_routes: Use only paths that programs can use; otherwise all.
        only_even: Give up if the even split loses rate.
        useful: Minimum capacity of a path through a switch.
        deadline: Deadline of the search.

    Returns:
        Paths with their capacities. None if an even split loses rate.

    Raises:
        Late: The deadline has passed.
    """
    pieces = _pieces(network) if fixed_routes else None
    paths: Paths = {
        (e,): a
        for e, a in enumerate(scaled.found.amounts.tolist())
        if a and (pieces is None or (e,) in pieces)
    }
    trees = scaled.trees
    # Switches first: a path past a relay is then made of whole routes.
    for vertex in sorted(
        set(range(len(network.vertices))) - set(group), key=lambda v: (v < network.ranks, v)
    ):
        deadline.check()
        pairs = _pairs(network, paths, vertex, pieces)
        split = _without(network, vertex, _evenly(paths, _across(network, paths, pairs, vertex), useful))
        if not is_feasible_rate(as_capacities(network, split), supply, sinks, trees):
            if only_even:
                return None
            exact = _evenly(_exactly(network, paths, pairs, vertex, supply, sinks, trees, deadline), pairs)
            choice = (split, _without(network, vertex, exact))
            split, trees = _best(choice, network, supply, sinks, trees)
        paths = split
    return paths


def as_capacities(network: Network, paths: Paths) -> Capacities:
    """Convert paths to the edges of a graph, in their order."""
    ends = np.array([_ends(network, path) for path in paths], np.int64).reshape(-1, 2)
    amounts = np.array(list(paths.values()), np.int64)
    return Capacities(len(network.vertices), ends[:, 0], ends[:, 1], amounts, Fraction(1))


def _ends(network: Network, path: tuple[int, ...]) -> tuple[int, int]:
    return network.edges[path[0]].source, network.edges[path[-1]].target


def _pieces(network: Network) -> set[tuple[int, ...]]:
    """Parts of paths of routes."""
    paths = (path for pair in pairs(network) for path in paths_of(network, network.route(*pair) or ()))
    return {path[a:b] for path in paths for a in range(len(path)) for b in range(a + 1, len(path) + 1)}


def paths_of(network: Network, route: Sequence[Use]) -> list[tuple[int, ...]]:
    """Equal-cost paths of a route."""
    onward: dict[int, list[int]] = {}
    for edge, _ in route:
        onward.setdefault(network.edges[edge].source, []).append(edge)
    found: list[tuple[int, ...]] = (
        [(edge,) for edge in onward[network.edges[route[0].edge].source]] if route else []
    )
    while any(network.edges[path[-1]].target in onward for path in found):
        found = [
            (*path, edge) if edge >= 0 else path
            for path in found
            for edge in onward.get(network.edges[path[-1]].target, [-1])
        ]
    return found


def _pairs(network: Network, paths: Paths, vertex: int, pieces: set[tuple[int, ...]] | None) -> list[Pair]:
    """Paths into the vertex with paths out of it that may become one."""
    into = [path for path in paths if network.edges[path[-1]].target == vertex]
    out = [path for path in paths if network.edges[path[0]].source == vertex]
    return [
        (one, two)
        for one in into
        for two in out
        if _ends(network, one)[0] != _ends(network, two)[1]
        and (pieces is None or vertex < network.ranks or one + two in pieces)
    ]


def _across(network: Network, paths: Paths, pairs: list[Pair], vertex: int) -> list[Pair]:
    """Only the pairs that nothing but the vertex joins, if these can pass on as much: others have ways of their own."""
    rest = [_ends(network, path) for path in paths if vertex not in _ends(network, path)]
    count = len(network.vertices)
    joined = coo_array((np.ones(len(rest)), np.array(rest, np.int64).reshape(-1, 2).T), shape=(count, count))
    part = connected_components(joined, directed=False)[1]
    apart = [(one, two) for one, two in pairs if part[_ends(network, one)[0]] != part[_ends(network, two)[1]]]
    return apart if _passed(paths, apart) == _passed(paths, pairs) else pairs


def _without(network: Network, vertex: int, paths: Paths) -> Paths:
    """Paths that do not start or end at a vertex; what it could not pass on is lost."""
    return {path: a for path, a in paths.items() if a and vertex not in _ends(network, path)}


def _best(
    splits: Sequence[Paths], network: Network, supply: NDArray[np.int64], sinks: Sequence[int], trees: int
) -> tuple[Paths, int]:
    """The split that carries most and its number of trees; in larger numbers where fewer than `trees` fit."""
    rates = [1 / tightest_cut(as_capacities(network, split), supply, sinks).ratio for split in splits]
    rate = max(rates)
    split = splits[rates.index(rate)]
    if rate >= trees:
        return split, trees
    return {path: amount * rate.denominator for path, amount in split.items()}, rate.numerator


def _passed(paths: Paths, pairs: Sequence[Pair]) -> int:
    """How much the pairs can pass on in all."""
    made = _Transport(paths, pairs)
    return made.flow([UNBOUNDED >> 8] * len(pairs))


class _Transport:
    """Paths into a vertex on one side, paths out of it on the other, and the pairs between them."""

    def __init__(self, paths: Paths, pairs: Sequence[Pair]) -> None:
        into, out = list({one: None for one, _ in pairs}), list({two: None for _, two in pairs})
        self._sink = 1 + len(into) + len(out)
        place = {path: n for n, path in enumerate((*into, *out), 1)}
        self._graph = FlowGraph(
            self._sink + 1,
            [0] * len(into) + [place[two] for two in out] + [place[one] for one, _ in pairs],
            [place[one] for one in into] + [self._sink] * len(out) + [place[two] for _, two in pairs],
        )
        self.ends = np.array([paths[path] for path in (*into, *out)], np.int64)
        used = [place[path] - 1 for pair in pairs for path in pair]
        self.uses = np.bincount(used, minlength=len(self.ends)).astype(np.int64)
        """Pairs of each path."""

    def flow(self, maximum: Sequence[int], base: int = 0) -> int:
        """How much passes, where each pair has got `base` before and may get `maximum`; far below 0: too much."""
        ends = self.ends - base * self.uses
        if len(ends) and min(ends.min(), *maximum) < 0:
            return -UNBOUNDED
        return self._graph.flow(np.concatenate([ends, maximum]), 0, self._sink)

    def on_pairs(self, maximum: Sequence[int], base: int) -> NDArray[np.int64]:
        """Total of each pair; arguments as in `flow`."""
        ends = self.ends - base * self.uses
        return self._graph.arc_flows(np.concatenate([ends, maximum]), 0, self._sink)[len(ends) :] + base


def _evenly(paths: Paths, pairs: Sequence[Pair], useful: int = 0) -> Paths:
    """Paths that pass on all they can, with the least for the pair that gets most, and then the most for the others.

    No pair needs to get less than is `useful`: small capacities make many trees.
    """
    made, count = _Transport(paths, pairs), len(pairs)
    whole = made.flow([UNBOUNDED >> 8] * count)
    least = _least(lambda each: made.flow([each] * count) == whole, int(max(made.ends, default=0)))
    most, base = max(least, useful), 0
    if most == least:
        base = _least(lambda b: made.flow([most - b] * count, b) < whole - b * count, most + 1) - 1
    split = dict(paths)
    for (one, two), amount in zip(pairs, made.on_pairs([most - base] * count, base).tolist(), strict=True):
        _move(split, one, two, amount)
    return split


def _least(holds: Callable[[int], bool], maximum: int) -> int:
    """Smallest number for which a condition holds that holds for all larger ones; at most `maximum`."""
    low, high = 0, maximum
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _move(paths: Paths, one: tuple[int, ...], two: tuple[int, ...], amount: int) -> None:
    if amount:
        paths[one] -= amount
        paths[two] -= amount
        paths[one + two] = paths.get(one + two, 0) + amount


def _exactly(
    network: Network,
    paths: Paths,
    pairs: Sequence[Pair],
    vertex: int,
    supply: NDArray[np.int64],
    sinks: Sequence[int],
    trees: int,
    deadline: Deadline,
) -> Paths:
    """Pair by pair, as much as leaves every cut wide enough."""
    split = {**paths, **{one + two: paths.get(one + two, 0) for one, two in pairs}}
    slack = _Slack(network, split, supply, sinks, trees)
    for one, two in pairs:
        deadline.check()
        most = min(split[one], split[two])
        if most:
            (start, _), (_, end) = _ends(network, one), _ends(network, two)
            _move(split, one, two, slack.at_most(list(split.values()), start, vertex, end, most))
    return split


class _Slack:
    """How much narrower cuts may get: flows with some vertices held on the side of the roots or of the sinks."""

    def __init__(
        self, network: Network, paths: Paths, supply: NDArray[np.int64], sinks: Sequence[int], trees: int
    ) -> None:
        found = as_capacities(network, paths)
        count = found.vertices
        self._hub, self._end = count, count + 1
        every = np.arange(count)
        self._graph = FlowGraph(
            count + 2,
            np.concatenate([found.sources, np.full(count, self._hub), every]),
            np.concatenate([found.targets, every, np.full(count, self._end)]),
        )
        self._supply, self._sinks = supply * trees, sinks
        self._total = int(self._supply.sum())

    def at_most(self, amounts: Sequence[int], start: int, vertex: int, end: int, maximum: int) -> int:
        """Capacity that may move from the edges start-vertex and vertex-end to an edge start-end."""
        for sink in self._sinks:
            if maximum and sink not in (start, end):
                maximum = self._spare(amounts, (start, end), (vertex, sink), maximum)
        ends_at_sink = {start, end} & set(self._sinks)
        for sink in self._sinks if not ends_at_sink else sorted(ends_at_sink)[:1]:
            if maximum:
                maximum = self._spare(amounts, (vertex,), (start, end, sink), maximum)
        return maximum

    def _spare(
        self, amounts: Sequence[int], with_roots: Sequence[int], with_sinks: Sequence[int], maximum: int
    ) -> int:
        held = self._supply.copy()
        held[list(with_roots)] = UNBOUNDED >> 8
        out = np.zeros_like(held)
        out[list(with_sinks)] = UNBOUNDED >> 8
        arcs = np.concatenate([np.asarray(amounts, np.int64), held, out])
        return max(
            0, min(maximum, self._graph.flow(arcs, self._hub, self._end, self._total + maximum) - self._total)
        )
