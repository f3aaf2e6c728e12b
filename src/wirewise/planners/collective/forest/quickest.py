"""One tree a root, in which each rank gets the data by its quickest way: in no time, and not of the largest rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from wirewise.collective import Network
from wirewise.errors import PlanError
from wirewise.planners.collective.adapt import distances
from wirewise.planners.collective.trees import Tree

__all__ = ["loads_of", "quickest_trees"]


def quickest_trees(network: Network, roots: Sequence[int], group: Sequence[int]) -> tuple[Tree, ...]:
    """A shortest-path tree from each root to the group, over other ranks where that is quicker.

    Args:
        network: Network of the trees.
        roots: Roots of the trees.
        group: Ranks to reach.

    Raises:
        PlanError: A rank that no routes lead to.
    """
    far_s, before = shortest_path(distances(network), indices=list(roots), return_predecessors=True)
    return tuple(
        Tree(root, Fraction(1), _edges(root, group, far_s[number], before[number]))
        for number, root in enumerate(roots)
    )


def _edges(
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
    """What each edge of the network carries, where each root sends its rate."""
    loads = [0.0] * len(network.edges)
    for tree in trees:
        for source, target in tree.edges:
            for edge in network.route(source, target) or ():
                loads[edge] += float(tree.weight) * roots[tree.root]
    return tuple(loads)
