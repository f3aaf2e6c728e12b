"""Spanning trees as programs: broadcast down trees, and reduction up trees.

A tree is listed from its root outwards. Reductions use the trees of the reversed network, reversed. Each tree carries
a chunk with the tree's weight as its fraction of the data, and the depth of a transfer is its step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from wirewise.collective import Network, Program, Transfer
from wirewise.errors import PlanError
from wirewise.planners.collective.adapt import distances
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = [
    "Tree",
    "all_reduce_by_trees",
    "loads_of",
    "reduce_by_trees",
    "reroot",
    "shortest_path_trees",
    "spread",
]


class Tree(NamedTuple):
    """Edges from a root to all members of a group, possibly relayed, with the fraction of data on the tree."""

    root: int
    weight: Fraction
    edges: tuple[tuple[int, int], ...]
    """Pairs of ranks, from, to; each rank is reached before it passes on."""

    @property
    def steps(self) -> list[int]:
        """Depth of the start of each edge."""
        depth = {self.root: 0}
        for source, target in self.edges:
            depth[target] = depth[source] + 1
        return [depth[source] for source, _ in self.edges]

    @property
    def height(self) -> int:
        """Number of edges from the root to the deepest rank."""
        return max(self.steps, default=-1) + 1


def reroot(tree: Tree, root: int) -> Tree:
    """Re-root a tree at another of its ranks."""
    joined: dict[int, list[int]] = {}
    for a, b in tree.edges:
        joined.setdefault(a, []).append(b)
        joined.setdefault(b, []).append(a)
    edges, reached, open_ = [], {root}, [root]
    for here in open_:
        for there in joined.get(here, []):
            if there not in reached:
                reached.add(there)
                open_.append(there)
                edges.append((here, there))
    return tree._replace(root=root, edges=tuple(edges))


def spread(problem: CollectiveProblem, name: str, trees: Sequence[Tree]) -> Program:
    """Broadcast or all-gather down trees; the weights of a root's trees are fractions of its block."""
    ordered = _by_block(problem, trees)
    transfers = [t for chunk, tree in enumerate(ordered) for t in _down(chunk, tree, 0)]
    return _program(problem, name, [tree.weight for tree in ordered], transfers)


def reduce_by_trees(problem: CollectiveProblem, name: str, trees: Sequence[Tree]) -> Program:
    """Reduce or reduce-scatter up trees that were built for the reversed network."""
    ordered = _by_block(problem, trees)
    last = max(tree.height for tree in ordered) - 1
    transfers = [t for chunk, tree in enumerate(ordered) for t in _up(chunk, tree, last)]
    return _program(problem, name, [tree.weight for tree in ordered], transfers)


def all_reduce_by_trees(
    problem: CollectiveProblem, name: str, up: Sequence[Tree], down: Sequence[Tree]
) -> Program:
    """All-reduce: reduce up the trees of the reversed network to their roots, then broadcast down the others.

    The trees of each root have the same total weight in both directions; if they divide the data differently, chunks
    are the parts that share one tree each way.
    """
    chunks = [part for root in sorted({tree.root for tree in up}) for part in _common(root, up, down)]
    last = max(tree.height for tree in up) - 1
    transfers = [t for number, (one, _) in enumerate(chunks) for t in _up(number, one, last)]
    transfers += [t for number, (_, two) in enumerate(chunks) for t in _down(number, two, last + 1)]
    return _program(problem, name, [one.weight for one, _ in chunks], transfers)


def _down(chunk: int, tree: Tree, first_step: int) -> list[Transfer]:
    pairs = zip(tree.edges, tree.steps, strict=True)
    return [Transfer(chunk, source, target, first_step + step) for (source, target), step in pairs]


def _up(chunk: int, tree: Tree, last_step: int) -> list[Transfer]:
    pairs = zip(tree.edges, tree.steps, strict=True)
    return [Transfer(chunk, target, source, last_step - step, True) for (source, target), step in pairs]


def _by_block(problem: CollectiveProblem, trees: Sequence[Tree]) -> list[Tree]:
    """Trees in the order of their blocks, the same number for each: the heaviest are halved where there are fewer."""
    roots = [problem.root] if problem.collective in ("broadcast", "reduce") else problem.group
    by_root = {root: [tree for tree in trees if tree.root == root] for root in roots}
    if not all(by_root.values()):
        raise PlanError(f"got no tree for one of the ranks {list(roots)}; expected at least one each")
    each = max(map(len, by_root.values()))
    for found in by_root.values():
        while len(found) < each:
            found.sort(key=lambda tree: tree.weight)
            heaviest = found.pop()
            found += [heaviest._replace(weight=heaviest.weight / 2)] * 2
    return [tree for root in roots for tree in by_root[root]]


def _common(root: int, up: Sequence[Tree], down: Sequence[Tree]) -> list[tuple[Tree, Tree]]:
    """Cut the trees of a root both ways at the same places; the parts of both have the same weights."""
    ours, theirs = ([tree for tree in trees if tree.root == root] for trees in (up, down))
    total = sum((tree.weight for tree in ours), Fraction(0))
    scale = total / sum((tree.weight for tree in theirs), Fraction(0))
    found, one, two = [], 0, 0
    left_one, left_two = ours[0].weight, theirs[0].weight * scale
    while one < len(ours) and two < len(theirs):
        part = min(left_one, left_two)
        found.append((ours[one]._replace(weight=part), theirs[two]._replace(weight=part)))
        left_one, left_two = left_one - part, left_two - part
        if not left_one and (one := one + 1) < len(ours):
            left_one = ours[one].weight
        if not left_two and (two := two + 1) < len(theirs):
            left_two = theirs[two].weight * scale
    return found


def _program(
    problem: CollectiveProblem, name: str, weights: Sequence[Fraction], transfers: Sequence[Transfer]
) -> Program:
    shares = () if len(set(weights)) == 1 else tuple(map(float, weights))
    return problem.program(name, len(weights), transfers, shares)


def shortest_path_trees(network: Network, roots: Sequence[int], group: Sequence[int]) -> tuple[Tree, ...]:
    """Shortest-path tree from each root to the group, relayed where that is faster; computed in negligible time.

    Args:
        network: Network of the trees.
        roots: Roots of the trees.
        group: Ranks to reach.

    Raises:
        PlanError: A rank is unreachable.
    """
    far_s, before = shortest_path(distances(network), indices=list(roots), return_predecessors=True)
    return tuple(
        Tree(root, Fraction(1), _quickest_edges(root, group, far_s[number], before[number]))
        for number, root in enumerate(roots)
    )


def _quickest_edges(
    root: int, group: Sequence[int], far_s: NDArray[np.float64], before: NDArray[np.int32]
) -> tuple[tuple[int, int], ...]:
    needed: set[int] = set()
    for rank in group:
        here = rank
        while here != root and here not in needed:
            if not np.isfinite(far_s[here]):
                raise PlanError(f"no routes lead from rank {root} to rank {here}; add the missing link")
            needed.add(here)
            here = int(before[here])
    # Who passes on is nearer to the root.
    return tuple((int(before[rank]), rank) for rank in sorted(needed, key=lambda r: (far_s[r], r)))


def loads_of(network: Network, trees: Sequence[Tree], roots: Mapping[int, int]) -> tuple[float, ...]:
    """Load of each edge of the network, if each root sends its rate."""
    loads = [0.0] * len(network.edges)
    for tree in trees:
        for source, target in tree.edges:
            for edge, fraction in network.route(source, target) or ():
                loads[edge] += fraction * float(tree.weight) * roots[tree.root]
    return tuple(loads)
