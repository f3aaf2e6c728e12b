"""What a collective that moves asks for, chunk by chunk, and how far ranks are from each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective import REDUCING, Network
from wirewise.collective.relations import blocks, contributors, receivers
from wirewise.errors import PlanError
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = ["Demand", "block_bytes", "demands", "hops", "pairs"]


class Demand(NamedTuple):
    """One block: where it is and who needs it."""

    block: int
    source: int
    targets: tuple[int, ...]
    """Ranks that need it and do not hold it."""


def demands(problem: CollectiveProblem) -> list[Demand]:
    """One demand a block, those that are met from the start included.

    Raises:
        PlanError: The collective adds up; `combine.by_mirror` turns it into one that moves.
    """
    if problem.collective in REDUCING:
        raise PlanError(f"got {problem.collective}, which adds up; expected a collective that moves")
    group = problem.group
    root = group.index(problem.root) if problem.root in group else 0
    found = []
    for block in range(blocks(problem.collective, len(group))):
        (start,) = contributors(problem.collective, block, len(group), root)
        ends = receivers(problem.collective, block, len(group), root)
        found.append(Demand(block, group[start], tuple(group[e] for e in ends if e != start)))
    return found


def block_bytes(problem: CollectiveProblem) -> float:
    """Bytes of one block."""
    members = len(problem.group)
    in_buffer = members if problem.collective == "all_to_all" else blocks(problem.collective, members)
    return problem.size_bytes / in_buffer


def pairs(network: Network) -> list[tuple[int, int]]:
    """Pairs of ranks between which a transfer can go, ascending."""
    return [(s, t) for s in range(network.ranks) for t in network.neighbours(s)]


def hops(network: Network) -> NDArray[np.int64]:
    """Transfers that a chunk needs from each rank to each other, [ranks, ranks]; as many as ranks: no way."""
    count = network.ranks
    far = np.full((count, count), count, np.int64)
    for source in range(count):
        far[source, source] = 0
        reached = [source]
        for here in reached:
            for there in network.neighbours(here):
                if far[source, there] == count:
                    far[source, there] = far[source, here] + 1
                    reached.append(there)
    return far
