"""Demands of a collective per chunk, and hop distances between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from wirewise.collective import REDUCING, Collective, Network
from wirewise.collective.relations import blocks, contributors, receivers
from wirewise.errors import PlanError
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = ["Demand", "block_bytes", "demands", "hops", "moves", "pairs"]


class Demand(NamedTuple):
    """Demand for one block: its sources and the ranks that need it."""

    block: int
    source: int
    targets: tuple[int, ...]
    """Ranks that need it and do not hold it."""


def demands(problem: CollectiveProblem) -> list[Demand]:
    """List one demand per block, including those already met at the start.

    Raises:
        PlanError: The collective reduces; `combine.plan_by_mirroring` turns it into one that does not.
    """
    if problem.collective in REDUCING:
        raise PlanError(f"got {problem.collective}, which adds up; expected a collective that moves")
    return list(moves(problem.collective, problem.group, problem.root))


def moves(collective: Collective, group: Sequence[int], root: int) -> Iterator[Demand]:
    """Demands of a non-reducing collective between the ranks of a group."""
    place = group.index(root) if root in group else 0
    for block in range(blocks(collective, len(group))):
        (start,) = contributors(collective, block, len(group), place)
        ends = receivers(collective, block, len(group), place)
        yield Demand(block, group[start], tuple(group[e] for e in ends if e != start))


def block_bytes(problem: CollectiveProblem) -> float:
    """Size of one block, in bytes."""
    members = len(problem.group)
    in_buffer = members if problem.collective == "all_to_all" else blocks(problem.collective, members)
    return problem.size_bytes / in_buffer


def pairs(network: Network) -> list[tuple[int, int]]:
    """Pairs of ranks with a route, ascending."""
    return [(s, t) for s in range(network.ranks) for t in network.neighbours(s)]


def hops(network: Network) -> NDArray[np.int64]:
    """Number of transfers that a chunk needs from each rank to each other, [ranks, ranks]; `ranks` if unreachable."""
    links = np.zeros((network.ranks, network.ranks))
    links[tuple(np.array(pairs(network), np.int64).reshape(-1, 2).T)] = 1.0
    far = shortest_path(links, unweighted=True)
    return np.where(np.isfinite(far), far, network.ranks).astype(np.int64)
