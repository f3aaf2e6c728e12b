"""Scatter with the least time on the busiest edge: one flow out of the root, relayed where that is faster.

All blocks leave the same root, so that together they are one flow. Objective: the least time of the busiest edge.
Variables: bytes from rank to rank. Constraints: each rank keeps a block, the root sends all; routes that cross an
edge share it. A linear program of ranks^2 variables; of the optimal flows, one with the fewest bytes in all is split
into paths, a few for each block.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array, hstack

from wirewise.collective import Network, Program, Transfer
from wirewise.collective.maxflow import FlowGraph
from wirewise.errors import PlanError
from wirewise.planners.collective.demands import pairs
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.solvers import linear

__all__ = ["scatter_programs"]

_PARTS = 1 << 10
"""Parts of a block that paths are whole numbers of: finer ones would be messages of no use."""
_BYTES_COUNT = 1e-4
"""Weight of all bytes against the time of the busiest edge: detours that gain less are not taken."""

Path = tuple[int, ...]


def scatter_programs(problem: CollectiveProblem, time_limit_s: float) -> list[Program]:
    """Build programs of a scatter that send the same in two orders; a gather is their mirror.

    Args:
        problem: Scatter to plan; ranks outside the group relay.
        time_limit_s: Time limit of the linear program, in seconds.

    Raises:
        PlanError: No flow reaches all ranks, or none was found in time.
    """
    network, root = problem.network, problem.root
    ends = pairs(network)
    flow = _flow(network, ends, root, problem.group, time_limit_s)
    left = {pair: amount for pair, amount in zip(ends, flow, strict=True) if amount > 0}
    paths = {rank: _paths(left, root, rank) for rank in problem.group if rank != root}
    return [_program(problem, paths, late) for late in (False, True)]


def _flow(
    network: Network, ends: Sequence[tuple[int, int]], root: int, group: Sequence[int], time_limit_s: float
) -> list[int]:
    """Parts of blocks from rank to rank; in a block there are `_PARTS`."""
    table, columns = network.table, np.arange(len(ends))
    rates = network.arcs.rate
    crossing = np.repeat(columns, np.diff(table.first))
    loads = coo_array((table.fraction, (table.edges, crossing)), shape=(len(rates), len(ends)))
    source, target = np.array(ends, np.int64).reshape(-1, 2).T
    out = coo_array((np.ones(len(ends)), (source, columns)), shape=(network.ranks, len(ends)))
    into = coo_array((np.ones(len(ends)), (target, columns)), shape=(network.ranks, len(ends)))
    needs = np.zeros(network.ranks)
    needs[list(group)] = 1.0
    needs[root] = 1.0 - len(group)
    busiest = csr_array(-(rates / rates.max())[:, None])
    solved = linear(
        np.append(np.full(len(ends), _BYTES_COUNT / len(ends)), 1.0),
        A_ub=hstack([loads, busiest], format="csr"),
        b_ub=np.zeros(len(rates)),
        A_eq=hstack([into.tocsr() - out.tocsr(), csr_array((network.ranks, 1))], format="csr"),
        b_eq=needs,
        budget_s=time_limit_s,
    )
    if solved.x is None or solved.status != 0:
        raise PlanError(
            f"no flow was found out of rank {root} to all ranks: {solved.message}; add the missing link"
        )
    # Rounded up there is room for a flow in whole parts, which any choice of paths can be taken out of.
    room = np.ceil(np.asarray(solved.x[:-1]) * _PARTS - 1e-6).astype(np.int64)
    sinks = np.array([rank for rank in group if rank != root], np.int64)
    graph = FlowGraph(
        network.ranks + 1, np.append(source, sinks), np.append(target, np.full(len(sinks), network.ranks))
    )
    arcs = graph.arc_flows(np.append(room, np.full(len(sinks), _PARTS)), root, network.ranks)
    flow: list[int] = arcs[: len(ends)].tolist()
    return flow


def _paths(left: dict[tuple[int, int], int], root: int, rank: int) -> list[tuple[Path, float]]:
    """Take a block's paths out of what is left of the flow, the shortest first."""
    found, missing = list[tuple[Path, float]](), _PARTS
    while missing:
        path = _shortest(left, root, rank)
        if path is None:
            raise PlanError(f"the flow out of rank {root} does not reach rank {rank}; add the missing link")
        hops = list(itertools.pairwise(path))
        amount = min(missing, *(left[hop] for hop in hops))
        for hop in hops:
            left[hop] -= amount
            if not left[hop]:
                del left[hop]
        found.append((path, amount))
        missing -= amount
    return found


def _shortest(left: dict[tuple[int, int], int], root: int, rank: int) -> Path | None:
    onward: dict[int, list[int]] = {}
    for a, b in left:
        onward.setdefault(a, []).append(b)
    before, queue = {root: root}, deque([root])
    while queue and rank not in before:
        here = queue.popleft()
        for there in onward.get(here, ()):
            if there not in before:
                before[there] = here
                queue.append(there)
    if rank not in before:
        return None
    path = [rank]
    while path[-1] != root:
        path.append(before[path[-1]])
    return tuple(reversed(path))


def _program(problem: CollectiveProblem, paths: dict[int, list[tuple[Path, float]]], late: bool) -> Program:
    """Chunks of each block by its paths; those of few paths are cut so that all blocks have as many.

    Each hop has the first step that it can have or, `late`, the last one, so that what has far to go leaves first.
    """
    each = max((len(own) for own in paths.values()), default=1)
    shares, transfers = list[float](), list[Transfer]()
    longest = max((len(path) for own in paths.values() for path, _ in own), default=0)
    for block, rank in enumerate(problem.group):
        own = list(paths.get(rank, [((rank,), _PARTS)]))
        while len(own) < each:
            path, amount = own.pop(max(range(len(own)), key=lambda place: own[place][1]))
            own += [(path, amount / 2)] * 2
        for number, (path, amount) in enumerate(own):
            chunk = block * each + number
            shares.append(float(amount))
            hops = enumerate(itertools.pairwise(path), longest - len(path) if late else 0)
            transfers += [Transfer(chunk, a, b, step) for step, (a, b) in hops]
    return problem.program(f"forest-flow-{each}", len(shares), transfers, tuple(shares))
