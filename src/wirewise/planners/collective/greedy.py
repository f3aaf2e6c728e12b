"""Programs for many ranks in seconds: links take chunks greedily on the time-expanded network, best of many runs.

W. Won et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer", MICRO 2024, sections 4 and 5: whenever a link
is free, it takes a chunk that its source holds and its target needs. Beyond the paper: edges that routes share
(switches, hosts, network ports), relays that need no chunk themselves (groups, all-to-all), and a bound: each further
run must beat the best one, so that slow links take no chunk that would arrive too late.

Objective: the time of the last arrival. A run costs O(transfers x chunks / 64) in the worst case.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from wirewise import work
from wirewise.collective import Network, Program, Transfer
from wirewise.errors import PlanError
from wirewise.planners.collective.combine import plan_by_mirroring
from wirewise.planners.collective.demands import block_bytes, demands, pairs
from wirewise.planners.collective.matching import Links, MatchedTransfers, match
from wirewise.planners.collective.problem import CollectiveProblem, Proposal
from wirewise.planners.collective.segments import with_best_segments

__all__ = ["propose", "synthesize"]

_MOST_CELLS = 4_000_000
"""Chunks times ranks of a run, above which chunks are not made smaller."""
_MOST_CHUNKS = 256
"""Most chunks of a block; finer pipelining is left to segments."""
_LONGER = 4
"""Latencies that a chunk lasts at least, on the fastest link: ranks answer a message later than latency says, and do so
once for every chunk. 4 MB on h4-quarter in chunks of 4 KB took 1.6 times what was simulated, of 32 KB 1.1 times."""
_SENT_S, _CHUNK_S = 5e-6, 1e-9
"""Work of a transfer of a run, and its part that grows with the chunks: 4,096 chunks of 16 ranks take 0.4 s."""
_STYLES = tuple(itertools.product((False, True), (np.inf, 1.0, 3.0)))
"""Which chunk a link takes (see `matching`), and how slow a link may be against the quickest way."""


def synthesize(
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    chunks: int | None = None,
    runs: int = 48,
) -> Program:
    """Synthesize the best program of many random greedy runs.

    Args:
        problem: Problem of any collective; reducing ones are planned in reverse.
        time_limit_s: Time after which no run starts, in seconds; the first run always completes.
        seed: Seed of the first run.
        chunks: Chunks per block. Defaults to trying several numbers.
        runs: Maximum number of runs.

    Raises:
        PlanError: No run reached all ranks.
    """
    return propose(problem, time_limit_s=time_limit_s, seed=seed, chunks=chunks, runs=runs).program


def propose(
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    chunks: int | None = None,
    runs: int = 48,
) -> Proposal:
    """Propose the best of many greedy runs, noting runs skipped by the time limit; arguments as in `synthesize`."""
    halves = 2 if problem.collective == "all_reduce" else 1
    done, each = list[int](), max(runs // halves, 1)

    def plan(moving: CollectiveProblem) -> Program:
        return _best(moving, work.spent_s() + time_limit_s / halves, seed, chunks, each, done)

    program = plan_by_mirroring(problem, plan)
    if sum(done) == each * len(done):
        return Proposal(program)
    return Proposal(
        program, (f"its time ended after {sum(done)} of {each * len(done)} runs",), cut_short=True
    )


def _best(
    problem: CollectiveProblem, ends: float, seed: int, chunks: int | None, runs: int, done: list[int]
) -> Program:
    """Find the program of the best run; appends the number of runs to `done`."""
    sizes = [chunks] if chunks is not None else _sizes(problem)
    tables: dict[int, _Table] = {}
    best: tuple[MatchedTransfers, _Table] | None = None
    deadline_s, best_size = np.inf, sizes[0]
    net, of_size = problem.network, dict[int, Program]()
    # The matching knows neither links that messages share nor what messages cost: there the simulation decides.
    simulated = net.shares or bool(net.message_s)
    for number in range(runs):
        if best is not None and work.spent_s() > ends:
            done.append(number)
            break
        size = sizes[number] if number < len(sizes) else best_size
        by_distance, patience = _STYLES[max(number - len(sizes) + 1, 0) % len(_STYLES)]
        table = tables[size] = tables.get(size) or _Table(problem, size)
        found = match(
            table.links,
            table.source,
            table.needs,
            seed + number,
            by_distance,
            patience,
            np.inf if simulated and number < len(sizes) else deadline_s,
        )
        work.charge(len(found.chunk) * (_SENT_S + _CHUNK_S * len(table.source)))
        if simulated and np.isfinite(found.finish_s) and (number < len(sizes) or found.finish_s < deadline_s):
            of_size[size] = _program(problem, found, table)
        if found.finish_s < deadline_s:
            best, best_size, deadline_s = (found, table), size, found.finish_s * (1 - 1e-6)
    else:
        done.append(runs)
    if best is None:
        raise PlanError(
            f"no run of {runs} brought {problem.collective} to its end; allow more runs, or check that all ranks "
            "are joined in both directions"
        )
    if not simulated:
        return _program(problem, *best)
    return min(of_size.values(), key=lambda one: with_best_segments(one, net, problem.size_bytes)[1])


class _Table:
    """The problem as arrays, for blocks of so many chunks."""

    def __init__(self, problem: CollectiveProblem, each: int) -> None:
        self.each = each
        self.pairs = pairs(problem.network)
        self.links = _links(problem.network, self.pairs, block_bytes(problem) / each)
        wanted = demands(problem)
        self.source = np.repeat([d.source for d in wanted], each)
        needs = np.zeros((len(wanted), problem.network.ranks), np.bool_)
        for number, demand in enumerate(wanted):
            needs[number, list(demand.targets)] = True
        self.needs = np.repeat(needs, each, axis=0)


def _sizes(problem: CollectiveProblem) -> list[int]:
    """Chunks of a block that are worth a try: as long as a chunk lasts longer than latencies; see `_LONGER`."""
    net, found = problem.network, [1]
    blocks = len(demands(problem))
    latency = float(np.median([net.delay(*pair) for pair in pairs(net)] or [0.0]))
    rate = max((net.rate(*pair) for pair in pairs(net)), default=1.0)
    while (
        2 * found[-1] <= _MOST_CHUNKS
        and 2 * found[-1] * blocks * net.ranks <= _MOST_CELLS
        and block_bytes(problem) / found[-1] / rate > 2 * _LONGER * latency
    ):
        found.append(2 * found[-1])
    return found


def _links(network: Network, ends: list[tuple[int, int]], chunk_bytes: float) -> Links:
    routes = [network.route(*pair) or () for pair in ends]
    source, target = np.array(ends, dtype=np.int64).reshape(-1, 2).T.copy()
    takes = np.array([network.latency(*pair) + chunk_bytes / network.rate(*pair) for pair in ends])
    direct = np.zeros((network.ranks, network.ranks))
    direct[source, target] = takes
    over: list[list[int]] = [[] for _ in network.edges]
    for number, route in enumerate(routes):
        for edge, _ in route:
            over[edge].append(number)
    out: list[list[int]] = [[] for _ in range(network.ranks)]
    for number, rank in enumerate(source.tolist()):
        out[rank].append(number)
    starts, edges = _flat([[edge for edge, _ in route] for route in routes])
    fractions = np.array([fraction for route in routes for _, fraction in route], np.float64)
    hold = chunk_bytes * fractions / network.arcs.rate[edges]
    free = len(network.edges)
    return Links(
        source, target, takes, starts, edges, hold, free, *_flat(over), *_flat(out), shortest_path(direct)
    )


def _flat(lists: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lists one after the other, and where each begins."""
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return starts, np.fromiter(itertools.chain.from_iterable(lists), np.int64, count=int(starts[-1]))


def _program(problem: CollectiveProblem, found: MatchedTransfers, table: _Table) -> Program:
    """Steps: after the chunk has come to its source, and after what goes over the same link before."""
    came: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    transfers = []
    for chunk, source, target, link in _used(found, table):
        step = max(came.get((chunk, source), -1), last.get(link, -1)) + 1
        came[chunk, target] = last[link] = step
        transfers.append(Transfer(chunk, source, target, step))
    return problem.program("greedy", len(table.source), transfers)


def _used(found: MatchedTransfers, table: _Table) -> list[tuple[int, int, int, int]]:
    """Chunk, source, target and link of the transfers that a rank with a need of its own comes after."""
    wanted = table.needs.copy()
    kept = []
    for chunk, link in zip(found.chunk[::-1].tolist(), found.link[::-1].tolist(), strict=True):
        source, target = table.pairs[link]
        if wanted[chunk, target]:
            wanted[chunk, source] = True
            kept.append((chunk, source, target, link))
    return kept[::-1]
