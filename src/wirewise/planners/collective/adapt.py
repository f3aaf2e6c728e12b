"""One tree over all levels of a machine, with segments pipelined through it without barriers.

X. Luo et al., "ADAPT: An Event-Based Adaptive Collective Communication Framework", HPDC 2018, section 4: close ranks
form groups, each group has a leader, leaders form groups on the next level, and every group has a subtree of its own
shape. The leader of a group is the root of its subtree and a member of the one above, so that all form one tree; a
rank sends to the child on the slowest level first. Objective: simulated time, over the shapes of the levels; the
segment size comes from the pipeline model. Complexity: shapes ^ levels simulations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from wirewise import work
from wirewise.collective import Collective, Network, Program, Transfer
from wirewise.errors import PlanError
from wirewise.planners.collective.combine import reduce_then_broadcast, reverse_program
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.sim.programs import simulate

__all__ = [
    "COLLECTIVES",
    "SHAPES",
    "Groups",
    "cluster_ranks",
    "distances",
    "pipeline_segments",
    "program_of",
    "synthesize",
    "tree",
]

COLLECTIVES: tuple[Collective, ...] = ("broadcast", "reduce", "all_reduce", "scatter", "gather")
"""Collectives that trees are made for."""
_PROBE_BYTES = 65536.0
"""Ranks are near where a message of this size is quick."""
_JUMP = 1.5
"""A level ends where the next ranks are so many times as far."""
_LEAST_SEGMENT_BYTES = 4096
_MOST_SEGMENTS = 256
_MOST_LEVELS = 3

Groups = tuple["int | Groups", ...]
"""A group: ranks, or groups of the level below."""
Parents = dict[int, int]
_Shape = Callable[[NDArray[np.float64], Sequence[int]], Parents]


def synthesize(
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    shapes: Sequence[str] = (),
    segments: int | None = None,
) -> Program:
    """Synthesize the tree whose program is fastest in simulation.

    Args:
        problem: One of `COLLECTIVES`.
        time_limit_s: Time after which no further tree is simulated, in seconds.
        seed: Unused: the planner is deterministic.
        shapes: Shapes of the levels, the slowest first, names of `SHAPES`. Defaults to trying all.
        segments: Number of segments. Defaults to that of `pipeline_segments`.

    Raises:
        PlanError: The collective is not supported, a shape is unknown, or ranks are connected only through others.
    """
    if problem.collective not in COLLECTIVES:
        raise PlanError(
            f"got {problem.collective}; expected one of {', '.join(COLLECTIVES)}: ADAPT plans trees"
        )
    ends = work.spent_s() + time_limit_s
    distance = distances(problem.network)
    groups = cluster_ranks(distance, problem.group)
    root = _root(problem, distance)
    # Towards the root messages take the links the other way, and those may be slower, or not there.
    towards = problem.collective in ("reduce", "gather")
    best, best_s = None, math.inf
    for chosen in [tuple(shapes)] if shapes else itertools.product(SHAPES, repeat=_depth(groups)):
        if best is not None and work.spent_s() > ends:
            break
        parents = tree(distance.T if towards else distance, groups, root, chosen)
        inwards = tree(distance.T, groups, root, chosen) if problem.collective == "all_reduce" else parents
        if parents is None or inwards is None:
            continue
        program = program_of(problem, parents, segments, inwards)
        seconds = simulate(program, problem.network, problem.size_bytes).finish_s
        if seconds < best_s:
            best, best_s = program, seconds
    if best is None:
        raise PlanError(
            "no tree joins the ranks of the group without others in between; expected direct routes, use the planner "
            "greedy instead"
        )
    return best


def cluster_ranks(
    distance: NDArray[np.float64], ranks: Sequence[int], most_levels: int = _MOST_LEVELS
) -> Groups:
    """Cluster ranks hierarchically by single linkage, cut where distances jump.

    Args:
        distance: Message time from rank to rank, in seconds, [ranks, ranks]; infinite if there is no path.
        ranks: Ranks to group.
        most_levels: Maximum nesting depth; deeper levels are merged, except at the largest jumps.
    """
    if len(ranks) < 3:
        return tuple(ranks)
    own = distance[np.ix_(ranks, ranks)]
    both = np.maximum(own, own.T)
    finite = both[np.isfinite(both)].max(initial=1.0)
    np.fill_diagonal(both, 0.0)
    joined = linkage(squareform(np.minimum(both, 100 * finite), checks=False), "single")
    heights = joined[:, 2]
    jumps = [(high / max(low, 1e-30), low) for low, high in itertools.pairwise(heights) if high > _JUMP * low]
    cuts = sorted((low for _, low in sorted(jumps, reverse=True)[: most_levels - 1]), reverse=True)
    return _nested(tuple(ranks), [fcluster(joined, cut * (1 + 1e-9), "distance") for cut in cuts], ranks)


def _nested(own: tuple[int, ...], labels: list[NDArray[np.int32]], ranks: Sequence[int]) -> Groups:
    """Groups by the first labels, and in each by those that follow."""
    if not labels:
        return own
    place = {rank: number for number, rank in enumerate(ranks)}
    parts: dict[int, list[int]] = {}
    for rank in own:
        parts.setdefault(int(labels[0][place[rank]]), []).append(rank)
    inner = [_nested(tuple(part), labels[1:], ranks) for part in parts.values()]
    return tuple(inner) if len(inner) > 1 else inner[0]


def tree(distance: NDArray[np.float64], groups: Groups, root: int, shapes: Sequence[str]) -> Parents | None:
    """Parent of each rank but the root, with children in send order. None if some ranks are unreachable.

    Args:
        distance: Distances between ranks, as in `cluster_ranks`.
        groups: Groups of ranks.
        root: Leader of its groups on all levels; the leader of any other group is the rank nearest to the ranks
            outside.
        shapes: Shapes of the levels, the outermost first; the last one also applies to further levels.

    Raises:
        PlanError: A shape is unknown.
    """
    unknown = [name for name in shapes if name not in SHAPES]
    if unknown or not shapes:
        raise PlanError(f"got the shapes {tuple(shapes)}; expected some of {', '.join(SHAPES)}")
    parents = _joined(distance, groups, root, shapes)
    reached = all(np.isfinite(distance[parent, rank]) for rank, parent in parents.items())
    return parents if reached else None


def _joined(distance: NDArray[np.float64], groups: Groups, root: int, shapes: Sequence[str]) -> Parents:
    """Leaders first, so that a rank's children on slow levels come before those on fast ones."""
    everyone = _flat(groups)
    leaders = {_leader(distance, _flat(part), everyone, root): part for part in groups}
    order = [root, *(rank for rank in leaders if rank != root)]
    parents = SHAPES[shapes[0]](distance, order)
    for leader, part in leaders.items():
        if not isinstance(part, int):
            parents |= _joined(distance, part, leader, shapes[1:] or shapes)
    return parents


def _leader(distance: NDArray[np.float64], part: Sequence[int], everyone: Sequence[int], root: int) -> int:
    outside = [rank for rank in everyone if rank not in set(part)]
    if root in part or not outside:
        return root if root in part else part[0]
    return min(part, key=lambda rank: (float(distance[outside, rank].min()), rank))


def _flat(groups: int | Groups) -> list[int]:
    return [groups] if isinstance(groups, int) else [rank for part in groups for rank in _flat(part)]


def _depth(groups: Groups) -> int:
    return 1 + max((_depth(part) for part in groups if not isinstance(part, int)), default=0)


def _chain(distance: NDArray[np.float64], order: Sequence[int]) -> Parents:
    """Always to the nearest one that is left."""
    left, here, parents = list(order[1:]), order[0], Parents()
    while left:
        there = min(left, key=lambda rank: (float(distance[here, rank]), rank))
        parents[there], here = here, there
        left.remove(there)
    return parents


def _binomial(distance: NDArray[np.float64], order: Sequence[int]) -> Parents:
    """Largest subtrees first; the parent of a place lacks its lowest bit."""
    places = sorted(range(1, len(order)), key=lambda p: -(p & -p))
    return {order[p]: order[p & (p - 1)] for p in places}


def _flat_tree(distance: NDArray[np.float64], order: Sequence[int]) -> Parents:
    return dict.fromkeys(sorted(order[1:], key=lambda rank: -float(distance[order[0], rank])), order[0])


def _earliest(distance: NDArray[np.float64], order: Sequence[int]) -> Parents:
    """Always the transfer that ends first (P. Bhat et al., "Efficient collective communication ...", 1999)."""
    free, left, parents = {order[0]: 0.0}, list(order[1:]), Parents()
    while left:
        arrives, parent, child = min((free[s] + float(distance[s, t]), s, t) for s in free for t in left)
        parents[child] = parent
        free[parent] = free[child] = arrives
        left.remove(child)
    return parents


SHAPES: dict[str, _Shape] = {
    "chain": _chain,
    "binomial": _binomial,
    "flat": _flat_tree,
    "earliest": _earliest,
}
"""Parents of the ranks of one group, given the root and the others."""


def pipeline_segments(size_bytes: float, latency_s: float, s_per_byte: float, depth: int) -> int:
    """Number of segments that minimises (D + n / s - 1) (alpha + s beta): s = sqrt(alpha n / ((D - 1) beta)).

    Args:
        size_bytes: Total size n, in bytes.
        latency_s: Latency alpha of one message, in seconds.
        s_per_byte: Time per byte beta, in seconds.
        depth: Pipeline depth D: sequential messages, counting all children of a rank.
    """
    if depth < 2 or latency_s <= 0:
        wanted = 1.0 if depth < 2 else math.inf
    else:
        wanted = math.sqrt(size_bytes * (depth - 1) * s_per_byte / latency_s)
    most = min(_MOST_SEGMENTS, max(1, int(size_bytes // _LEAST_SEGMENT_BYTES)))
    return max(1, min(round(min(wanted, most)), most))


def distances(network: Network) -> NDArray[np.float64]:
    """Seconds of a 64 KiB message from rank to rank, [ranks, ranks]; infinite if only through other ranks."""
    found = np.full((network.ranks, network.ranks), np.inf)
    known = network.table
    found.ravel()[known.pair] = known.latency_s + _PROBE_BYTES / known.rate_bytes_per_s
    return found


def _root(problem: CollectiveProblem, distance: NDArray[np.float64]) -> int:
    """Root; of an all-reduce the rank that is nearest to the one furthest from it."""
    if problem.collective != "all_reduce":
        return problem.root
    own = distance[np.ix_(problem.group, problem.group)].copy()
    np.fill_diagonal(own, 0.0)
    return problem.group[int(own.max(axis=1).argmin())]


def program_of(
    problem: CollectiveProblem, parents: Parents, segments: int | None = None, inwards: Parents | None = None
) -> Program:
    """Build the collective's program on a tree.

    Args:
        problem: One of `COLLECTIVES`.
        parents: Parent of each rank but the root, with children in send order.
        segments: Number of segments. Defaults to that of `pipeline_segments`.
        inwards: Tree with the same root for the reduction of an all-reduce. Defaults to the same tree.
    """
    spreads = problem.collective in ("broadcast", "reduce", "all_reduce")
    program = _spread(problem, parents) if spreads else _scattered(problem, parents)
    if problem.collective == "all_reduce":
        summed = program if inwards is None else _spread(problem, inwards)
        program = reduce_then_broadcast(reverse_program(summed), program)
    elif problem.collective in ("reduce", "gather"):
        program = reverse_program(program)
    if segments is None:
        block = max(program.chunk_bytes(problem.size_bytes))
        ends = {(t.source, t.target) for t in program.transfers}
        latency = max((problem.network.delay(*pair) for pair in ends), default=0.0)
        per_byte = max((1 / problem.network.rate(*pair) for pair in ends), default=0.0)
        segments = pipeline_segments(block, latency, per_byte, program.steps)
    return msgspec.structs.replace(program, segments=segments)


def _steps(parents: Parents) -> dict[int, int]:
    """Step in which each rank but the root receives: after its parent, and after the siblings before it."""
    found: dict[int, int] = {}
    served: dict[int, int] = {}
    left = dict(parents)
    while left:
        for rank, parent in [item for item in left.items() if item[1] not in left]:
            found[rank] = max(found.get(parent, -1), served.get(parent, -1)) + 1
            served[parent] = found[rank]
            del left[rank]
    return found


def _spread(problem: CollectiveProblem, parents: Parents) -> Program:
    steps = _steps(parents)
    transfers = [Transfer(0, parent, rank, steps[rank]) for rank, parent in parents.items()]
    # The sums of an all-reduce may go to any rank.
    root = problem.root if problem.collective != "all_reduce" else problem.group[0]
    return replace(problem, collective="broadcast", root=root).program("adapt", 1, transfers)


def _scattered(problem: CollectiveProblem, parents: Parents) -> Program:
    """Each rank's block goes down the way from the root to it."""
    steps, transfers = _steps(parents), list[Transfer]()
    for block, rank in enumerate(problem.group):
        here = rank
        while here in parents:
            transfers.append(Transfer(block, parents[here], here, steps[here]))
            here = parents[here]
    return replace(problem, collective="scatter").program("adapt", len(problem.group), transfers)
