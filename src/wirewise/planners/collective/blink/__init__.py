"""Packed spanning trees on the links allotted to a job.

G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020. Objective: the largest total
rate of spanning trees under the capacities of the links, and few trees. Multiplicative weights find many trees near
the optimum (Edmonds' for broadcast and reduce; Tutte's and Nash-Williams' for all-reduce, whose trees are used up and
down at once), and integer programs reduce their number. Ranks around one switch use one-hop trees instead, and
several servers three phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from wirewise.collective import Network, Program
from wirewise.collective.maxflow import Capacities, FlowGraph
from wirewise.collective.partitions import tightest_partition
from wirewise.errors import PlanError
from wirewise.planners.collective.blink.arborescence import pack
from wirewise.planners.collective.blink.chunk_size import ChunkSize
from wirewise.planners.collective.blink.fewer import fewest_trees
from wirewise.planners.collective.blink.hybrid import Channel, equal_finish
from wirewise.planners.collective.blink.servers import three_phases
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.trees import Tree, all_reduce_by_trees, reduce_by_trees, reroot, spread

__all__ = [
    "Channel",
    "ChunkSize",
    "equal_finish",
    "links",
    "packed_trees",
    "strength",
    "synthesize",
    "tree_rate",
]


def synthesize(
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    epsilon: float = 0.1,
    tolerance: float = 0.05,
    servers: Sequence[Sequence[int]] = (),
) -> Program:
    """Synthesize a program of packed trees for broadcast, reduce or all-reduce.

    Args:
        problem: Problem over all ranks of its network.
        time_limit_s: Time limit of the integer programs, in seconds.
        seed: Unused: the planner is deterministic.
        epsilon: Step of the multiplicative weights.
        tolerance: Fraction of the optimal rate that may be given up for fewer trees.
        servers: Ranks of each server, for an all-reduce in three phases. Defaults to one server.

    Raises:
        PlanError: The collective is not supported, the group is a part of the ranks, or ranks are not connected.
    """
    _check(problem, servers)
    if servers:
        return three_phases(
            problem.network,
            servers,
            lambda ranks: _both_ways(problem.network, ranks, epsilon, tolerance, time_limit_s / len(servers)),
        )
    everyone = range(problem.network.ranks)
    if problem.collective == "all_reduce":
        trees = _both_ways(problem.network, everyone, epsilon, tolerance, time_limit_s)
        return all_reduce_by_trees(problem, f"blink-{len(trees)}", trees, trees)
    reduces = problem.collective == "reduce"
    seen = problem.network.reversed if reduces else problem.network
    capacity = links(seen)
    if tree_rate(capacity, problem.root):
        trees = packed_trees(capacity, problem.root, epsilon, tolerance, time_limit_s)
    else:
        trees = _two_hops(seen, problem.root)
    return (reduce_by_trees if reduces else spread)(problem, f"blink-{len(trees)}", trees)


def links(network: Network, ranks: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Bandwidth of the direct links between ranks, in bytes per second; [ranks, ranks]."""
    chosen = list(range(network.ranks) if ranks is None else ranks)
    place = {rank: number for number, rank in enumerate(chosen)}
    found = np.zeros((len(chosen), len(chosen)))
    for edge in network.edges:
        if edge.source in place and edge.target in place:
            # Programs take the widest of parallel links.
            pair = place[edge.source], place[edge.target]
            found[pair] = max(found[pair], edge.bandwidth_bytes_per_s)
    return found


def tree_rate(capacity: NDArray[np.float64], root: int) -> float:
    """Largest total rate of trees from the root: the minimum of its maximum flows (Edmonds 1973)."""
    unit = _unit(capacity)
    sources, targets = np.nonzero(capacity)
    graph = FlowGraph(len(capacity), sources, targets)
    # Whole numbers of a millionth of the narrowest link.
    amounts = np.round(capacity[sources, targets] / unit * 1e6).astype(np.int64)
    flows = [graph.flow(amounts, root, sink) for sink in range(len(capacity)) if sink != root]
    return min(flows, default=0) * unit / 1e6


def strength(capacity: NDArray[np.int64]) -> Fraction:
    """Largest total weight of undirected trees (Tutte; Nash-Williams 1961): the tightest partition.

    It is the minimum, over all partitions, of the capacity between the parts over their number minus one.

    Args:
        capacity: Integer capacities, symmetric; [n, n]. The result is 0 if the graph is disconnected.
    """
    sources, targets = np.nonzero(capacity)
    found = Capacities(len(capacity), sources, targets, capacity[sources, targets], Fraction(1))
    # Each edge enters one part in each direction.
    return tightest_partition(found, len(capacity)).ratio / 2


def packed_trees(
    capacity: NDArray[np.float64],
    root: int,
    epsilon: float = 0.1,
    tolerance: float = 0.05,
    time_limit_s: float = 60.0,
    *,
    both: bool = False,
) -> list[Tree]:
    """Pack few trees near the optimal rate; their weights are rates in units of the slowest link.

    Args:
        capacity: Bandwidth from each rank to each, in bytes per second; [ranks, ranks]. Symmetric if `both`.
        root: Root of all trees.
        epsilon: Step of the weights, as in `synthesize`.
        tolerance: Fraction of the rate that may be lost, as in `synthesize`.
        time_limit_s: Time limit of the search, in seconds, as in `synthesize`.
        both: Whether each tree uses its edges in both directions.

    Raises:
        PlanError: The root does not reach all ranks.
    """
    unit = _unit(capacity)
    whole = np.round(capacity / unit * 1e6).astype(np.int64)
    best = float(strength(whole)) / 1e6 if both else tree_rate(capacity, root) / unit
    if not best:
        raise PlanError(
            f"rank {root} does not reach all ranks over direct links; expected links that join them"
        )
    parents, _ = pack(capacity / unit, root, both=both, epsilon=epsilon)
    edges, uses = _uses(capacity > 0, parents, both)
    weights = fewest_trees(
        uses, capacity[edges] / unit, best, tolerance=tolerance, time_limit_s=time_limit_s / 2
    )
    chosen = [
        _outwards(tree, root, Fraction(weight).limit_denominator(10**6))
        for tree, weight in zip(parents.tolist(), weights.tolist(), strict=True)
        if weight > 1e-6
    ]
    return [_centred(tree) for tree in chosen] if both else chosen


def _uses(
    linked: NDArray[np.bool_], parents: NDArray[np.int64], both: bool
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]:
    """Edges, each pair once with `both`, and which tree uses which; [trees, edges]."""
    sources, targets = np.nonzero(np.triu(linked) if both else linked)
    uses = parents[:, targets] == sources
    if both:
        uses |= parents[:, sources] == targets
    return (sources, targets), uses.astype(np.float64)


def _outwards(parents: Sequence[int], root: int, weight: Fraction) -> Tree:
    edges = tuple((above, rank) for rank, above in enumerate(parents) if above >= 0)
    return reroot(Tree(root, weight, edges), root)


def _centred(tree: Tree) -> Tree:
    """Tree of the same edges from the root from which it is lowest."""
    ranks = sorted({tree.root, *(target for _, target in tree.edges)})
    return min((reroot(tree, rank) for rank in ranks), key=lambda one: one.height)


def _both_ways(
    network: Network, ranks: Sequence[int], epsilon: float, tolerance: float, time_limit_s: float
) -> list[Tree]:
    """Undirected trees of some ranks; where direct links do not join them, one star around each."""
    directed = links(network, ranks)
    capacity = np.minimum(directed, directed.T)
    if tree_rate(capacity, 0):
        trees = packed_trees(capacity, 0, epsilon, tolerance, time_limit_s, both=True)
        return [_named(tree, ranks) for tree in trees]
    _check_routes(network, ranks)
    return [Tree(root, Fraction(1), tuple((root, rank) for rank in ranks if rank != root)) for root in ranks]


def _two_hops(network: Network, root: int) -> list[Tree]:
    """Around a switch: from the root to one other rank for each tree, and from there to all others."""
    ranks = range(network.ranks)
    _check_routes(network, ranks)
    others = [rank for rank in ranks if rank != root]
    return [
        Tree(root, Fraction(1), ((root, head), *((head, rank) for rank in others if rank != head)))
        for head in others
    ]


def _named(tree: Tree, ranks: Sequence[int]) -> Tree:
    edges = tuple((ranks[a], ranks[b]) for a, b in tree.edges)
    return tree._replace(root=ranks[tree.root], edges=edges)


def _unit(capacity: NDArray[np.float64]) -> float:
    """Rate of the narrowest link."""
    return float(capacity[capacity > 0].min()) if (capacity > 0).any() else 1.0


def _check(problem: CollectiveProblem, servers: Sequence[Sequence[int]]) -> None:
    if problem.collective not in ("broadcast", "reduce", "all_reduce"):
        raise PlanError(
            f"got {problem.collective}; expected broadcast, reduce or all_reduce, or use the planner forest"
        )
    if len(problem.group) < problem.network.ranks:
        raise PlanError(
            f"got a group of {len(problem.group)} of {problem.network.ranks} ranks; expected all, as "
            "`collective.network(topology, ranks=...)` makes a network of some"
        )
    if servers and problem.collective != "all_reduce":
        raise PlanError(f"got servers for {problem.collective}; expected all_reduce")


def _check_routes(network: Network, ranks: Sequence[int]) -> None:
    for a in ranks:
        for b in ranks:
            if a != b and network.route(a, b) is None:
                raise PlanError(
                    f"ranks {a} and {b} have no route, and direct links do not join all ranks; expected either, "
                    "or use the planner forest"
                )
