"""Spanning-tree forests of the largest throughput of a network.

L. Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics", 2024.
Every rank is the root of k trees (a broadcast has one root); each tree carries an equal part of the root's block.
Objective: the least time on the busiest edge. It meets the cut bound exactly, in polynomial time: the rate from
maximum flows, switches removed by edge splitting (or, if their rates in and out differ, by a linear program over
routes), trees grown one edge at a time. Latencies are not in the objective; of the best forests, the fastest in
simulation is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.collective import Network, Program
from wirewise.collective.bounds import bound, busiest_edge_s, tightest_cut
from wirewise.collective.maxflow import capacities
from wirewise.errors import PlanError, TopologyError, WirewiseError
from wirewise.planners.collective.combine import reverse_program
from wirewise.planners.collective.deadline import Deadline, DeadlineReached
from wirewise.planners.collective.forest.flows import Division, divide_edges, route_capacities
from wirewise.planners.collective.forest.packing import TreeBatch, grow
from wirewise.planners.collective.forest.rates import exact_rate, is_feasible_rate, with_trees
from wirewise.planners.collective.forest.scatter import scatter_programs
from wirewise.planners.collective.forest.splitting import Paths, as_capacities, direct_paths
from wirewise.planners.collective.problem import CollectiveProblem, Proposal
from wirewise.planners.collective.segments import with_best_segments
from wirewise.planners.collective.trees import (
    Tree,
    all_reduce_by_trees,
    loads_of,
    reduce_by_trees,
    shortest_path_trees,
    spread,
)
from wirewise.sim.programs import simulate

__all__ = ["Forest", "forest", "forests", "propose", "synthesize"]

_MOST_TREES = 128
_WORTH = 0.005
"""Least gain for which an all-reduce divides edges between its phases."""
_SMALL = 16
"""Ranks up to which several splits of switches are compared."""
_SEGMENTS = 16
"""Segments of the simulations that compare them."""
_ALL = 1 << 40
_TINY = 1e-9
_LEAST_S = 1.0
"""Time that a packing may take even with a smaller budget; the forests of most machines take less."""


class Forest(NamedTuple):
    """Trees, and the capacities that they use."""

    trees: tuple[Tree, ...]
    """Trees; the weights of each root's trees add up to 1."""
    loads: tuple[float, ...]
    """Load of each edge of the network if each root sends at its rate."""
    packed: bool = True
    """Whether trees are packed; False if the time limit was reached, and each root has a shortest-path tree."""

    def seconds(self, network: Network) -> float:
        """Time of the busiest edge for one byte per unit of rate, in seconds."""
        return max(
            load / edge.bandwidth_bytes_per_s for load, edge in zip(self.loads, network.edges, strict=True)
        )

    def cost(self, network: Network) -> tuple[float, int, int]:
        """Sort key: time first, to nine digits, then height, then the number of trees."""
        height = max(tree.height for tree in self.trees)
        return float(f"{self.seconds(network):.9g}"), height, len(self.trees)


def synthesize(
    problem: CollectiveProblem, *, time_limit_s: float = 60.0, seed: int = 0, most_trees: int = _MOST_TREES
) -> Program:
    """Synthesize the program of a forest; arguments and errors as in `propose`."""
    return propose(problem, time_limit_s=time_limit_s, seed=seed, most_trees=most_trees).program


def propose(
    problem: CollectiveProblem, *, time_limit_s: float = 60.0, seed: int = 0, most_trees: int = _MOST_TREES
) -> Proposal:
    """Propose a forest for broadcast, reduce, all-gather, reduce-scatter or all-reduce; a flow for scatter or gather.

    Args:
        problem: Problem to plan.
        time_limit_s: Time limit of the packing, in seconds. If it ends first, each root gets one tree of fastest
            paths.
        seed: Unused: the planner is deterministic.
        most_trees: Maximum number of trees per root; if rates have no common unit, fewer trees approximate the
            optimal rate.

    Raises:
        PlanError: The collective is not supported.
    """
    collective, backward = problem.collective, problem.network.reversed
    if collective in ("broadcast", "all_gather"):
        made = _timed(problem.network, problem, time_limit_s, most_trees)
        return _proposed(spread(problem, _name(made), made.trees), made)
    if collective in ("reduce", "reduce_scatter"):
        made = _timed(backward, problem, time_limit_s, most_trees)
        return _proposed(reduce_by_trees(problem, _name(made), made.trees), made)
    if collective in ("scatter", "gather"):
        return Proposal(_flowing(problem, time_limit_s))
    if collective != "all_reduce":
        raise PlanError(
            f"got {collective}, which trees do not serve; expected broadcast, reduce, scatter, gather, all_gather, "
            "reduce_scatter or all_reduce"
        )
    return _all_reduce(problem, time_limit_s / 4, most_trees)


def _flowing(problem: CollectiveProblem, time_limit_s: float) -> Program:
    """The quicker order of a flow, of a scatter or, backwards, of a gather."""
    if problem.collective == "scatter":
        found = scatter_programs(problem, time_limit_s)
    else:
        turned = replace(problem, network=problem.network.reversed, collective="scatter")
        found = [reverse_program(one) for one in scatter_programs(turned, time_limit_s)]
    return min(found, key=lambda one: with_best_segments(one, problem.network, problem.size_bytes)[1])


def forest(network: Network, roots: Mapping[int, int], group: tuple[int, ...], **knobs: Any) -> Forest:
    """Lowest of `forests`; same arguments."""
    return min(forests(network, roots, group, **knobs), key=lambda one: one.cost(network))


def forests(
    network: Network,
    roots: Mapping[int, int],
    group: tuple[int, ...],
    *,
    most_trees: int = _MOST_TREES,
    time_limit_s: float = 60.0,
    fixed_routes: bool = True,
) -> list[Forest]:
    """Find trees from each root to all ranks of the group at the largest rate, for several ways to split switches.

    Args:
        network: Network; ranks outside the group and switches relay.
        roots: Relative rate of each root.
        group: Ranks to reach.
        most_trees: Maximum number of trees per unit of rate.
        time_limit_s: Time limit of the search, in seconds, as in `synthesize`.
        fixed_routes: Use the network's routes only, as programs do; otherwise any path through switches.
    """
    deadline, made = Deadline(max(time_limit_s, _LEAST_S)), list[Forest]()
    try:
        for one in _packed(network, roots, group, most_trees, deadline, fixed_routes):
            made.append(one)
    except DeadlineReached:
        pass
    if not made:
        trees = shortest_path_trees(network, tuple(roots), group)
        made.append(Forest(trees, loads_of(network, trees, roots), packed=False))
    return made


def _packed(
    network: Network,
    roots: Mapping[int, int],
    group: tuple[int, ...],
    most_trees: int,
    deadline: Deadline,
    fixed_routes: bool,
) -> Iterator[Forest]:
    """Forests one by one; arguments as in `forests`."""
    supply, sinks = _ends(network, roots, group)
    found = capacities(network)
    scaled = with_trees(found, supply, sinks, most_trees, deadline)
    split = partial(direct_paths, fixed_routes=fixed_routes, deadline=deadline)
    grown = partial(
        _grown, roots=roots, group=group, deadline=deadline, spreads=fixed_routes and network.spreads
    )
    cut = tightest_cut(found, supply, sinks)
    least_s = float(cut.ratio / found.unit_bytes_per_s)
    some = False
    for factor, useful in _splits(network, len(group), scaled.trees):
        paths = split(network, scaled.times(factor), supply, sinks, group, only_even=True, useful=useful)
        if paths is not None:
            made = grown(network, paths)
            # Pairs with several paths use all of them alike, which can be more than a path has room for.
            some = some or made.seconds(network) <= least_s * (1 + _TINY)
            yield made
        if some and len(group) > _SMALL:
            return
    if some:
        return
    rest = _split_exactly(partial(split, network, scaled, supply, sinks, group))
    if rest:
        yield grown(network, rest)
    whole = len(group) == network.ranks and fixed_routes
    carried = rest and is_feasible_rate(as_capacities(network, rest), supply, sinks, scaled.trees)
    if whole and (network.spreads or not carried):
        routed = route_capacities(network, supply, sinks, deadline.left_s)
        if routed:
            yield grown(network, routed)


def _ends(
    network: Network, roots: Mapping[int, int], group: tuple[int, ...]
) -> tuple[NDArray[np.int64], list[int]]:
    """Units of trees that start at each vertex, [vertices], and the ranks that all trees must reach."""
    supply = np.zeros(len(network.vertices), np.int64)
    supply[list(roots)] = list(roots.values())
    return supply, [rank for rank in group if set(roots) != {rank}]


def _split_exactly(split: Callable[[], Paths | None]) -> Paths | None:
    """Paths; None if a switch that takes in more than it lets out, or less, cannot be split with all ranks joined."""
    try:
        return split()
    except TopologyError:
        return None


def _proposed(program: Program, *made: Forest) -> Proposal:
    return Proposal(program, cut_short=not all(one.packed for one in made))


def _all_reduce(problem: CollectiveProblem, time_limit_s: float, most_trees: int) -> Proposal:
    """Two phases with all edges each; where that misses the bound, edges divided between the phases may come nearer."""
    network, size_bytes = problem.network, problem.size_bytes
    down = _timed(network, problem, time_limit_s, most_trees)
    up = down if _is_symmetric(network) else _timed(network.reversed, problem, time_limit_s, most_trees)
    phases = all_reduce_by_trees(problem, _name(down), up.trees, down.trees)
    needs_s = busiest_edge_s(phases, network, size_bytes)
    least_s = bound(network, "all_reduce", size_bytes, members=problem.members).seconds
    division = (
        divide_edges(network, problem.group, time_limit_s) if needs_s > least_s * (1 + _WORTH) else None
    )
    if division is None:
        return _proposed(phases, up, down)
    try:
        joint = _joint(problem, division, most_trees, time_limit_s / 2)
    except WirewiseError:
        # An edge that gets no part can leave ranks without a route of their own.
        return _proposed(phases, up, down)
    better = busiest_edge_s(joint, network, size_bytes) < needs_s * (1 - _WORTH)
    return _proposed(joint if better else phases, up, down)


def _joint(problem: CollectiveProblem, division: Division, most_trees: int, time_limit_s: float) -> Program:
    group = tuple(problem.group)
    up, down = (
        [
            tree._replace(weight=tree.weight * division.roots[tree.root])
            for tree in forest(
                part, division.roots, group, most_trees=most_trees, time_limit_s=time_limit_s
            ).trees
        ]
        for part in (division.summing, division.spreading)
    )
    return all_reduce_by_trees(problem, f"forest-joint-{len(down)}", up, down)


def _grown(
    network: Network,
    paths: Paths,
    roots: Mapping[int, int],
    group: tuple[int, ...],
    deadline: Deadline,
    spreads: bool,
) -> Forest:
    """Trees on paths between ranks, at the best rate that these carry; `spreads`: pairs use all their paths alike."""
    final = exact_rate(as_capacities(network, paths), *_ends(network, roots, group))
    counts = {root: final.trees * rate for root, rate in roots.items()}
    batches = grow(final.found, counts, group, deadline)
    trees = _trees(network, paths, batches, dict(roots), final.trees)
    loads = loads_of(network, trees, roots) if spreads else _loads(network, paths, batches, final.trees)
    return Forest(trees, loads)


def _splits(network: Network, group: int, trees: int) -> list[tuple[int, int]]:
    """Splits of switches to try: in how many times the number of trees, and in parts of at least how many.

    Large parts make few trees, and ports that serve few others do not wait for each other; even parts make low trees.
    """
    if len(network.vertices) == network.ranks:
        return [(1, 0)]
    found = [(1, _ALL), (1, trees // 2), (1, 0), (2, trees), (2, 0)]
    if group > _SMALL:
        return [*found, (4, 0)]
    return [*found, (group - 1, 0)] if trees * (group - 1) <= _MOST_TREES else found


def _loads(network: Network, paths: Paths, batches: list[TreeBatch], trees: int) -> tuple[float, ...]:
    loads = [0] * len(network.edges)
    found = list(paths)
    for batch in batches:
        for edge in (edge for arc in batch.arcs for edge in found[arc]):
            loads[edge] += batch.trees
    return tuple(load / trees for load in loads)


def _timed(network: Network, problem: CollectiveProblem, time_limit_s: float, most_trees: int) -> Forest:
    """The forest that is quickest in simulation, among those of the largest rate."""
    to_one = problem.collective in ("broadcast", "reduce")
    found = forests(
        network,
        dict.fromkeys([problem.root] if to_one else problem.group, 1),
        tuple(problem.group),
        most_trees=most_trees,
        time_limit_s=time_limit_s,
    )
    moving = replace(problem, network=network, collective="broadcast" if to_one else "all_gather")

    def seconds(one: Forest) -> float:
        program = msgspec.structs.replace(spread(moving, "", one.trees), segments=_SEGMENTS)
        return simulate(program, network, problem.size_bytes).finish_s

    return found[0] if len(found) == 1 else min(found, key=seconds)


def _trees(
    network: Network, paths: Paths, batches: list[TreeBatch], roots: dict[int, int], trees: int
) -> tuple[Tree, ...]:
    """Batches as trees of ranks; equal trees of a root become one."""
    steps = [_ranks_on(network, path) for path in paths]
    weights: dict[tuple[int, tuple[tuple[int, int], ...]], Fraction] = {}
    for batch in batches:
        key = (batch.root, _edges(batch, steps))
        share = Fraction(batch.trees, trees * roots[batch.root])
        weights[key] = weights.get(key, Fraction(0)) + share
    return tuple(Tree(root, weight, edges) for (root, edges), weight in weights.items())


def _ranks_on(network: Network, path: tuple[int, ...]) -> list[int]:
    """Ranks in order; where a path comes back to a relay, without the detour."""
    ranks = [network.edges[path[0]].source]
    for vertex in (network.edges[e].target for e in path):
        if vertex in ranks:
            del ranks[ranks.index(vertex) + 1 :]
        elif vertex < network.ranks:
            ranks.append(vertex)
    return ranks


def _edges(batch: TreeBatch, steps: list[list[int]]) -> tuple[tuple[int, int], ...]:
    """Transfers of a tree; a relay that several of its paths pass gets the data once."""
    reached, found = {batch.root}, []
    for arc in batch.arcs:
        ranks = steps[arc]
        start = max(place for place, rank in enumerate(ranks) if rank in reached)
        found += list(zip(ranks[start:], ranks[start + 1 :], strict=False))
        reached |= set(ranks)
    return tuple(found)


def _is_symmetric(network: Network) -> bool:
    edges = sorted((e.source, e.target, e.bandwidth_bytes_per_s) for e in network.edges)
    return edges == sorted((e.target, e.source, e.bandwidth_bytes_per_s) for e in network.edges)


def _name(made: Forest) -> str:
    return f"forest-{len(made.trees)}"
