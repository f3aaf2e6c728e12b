"""Exact search for programs of few steps on small networks, from latency-optimal to bandwidth-optimal.

Z. Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, sections 3 and 4. In a k-synchronous
program (C, S, R) each block is C chunks, there are S steps, and step s lasts r_s >= 1 rounds, R in all. In a round
an edge carries as many chunks as it is times as wide as the narrowest one. The time is S alpha + (R / C) beta bytes
of a block. The paper asks an SMT solver; here it is a mixed-integer program for HiGHS: exact, without licence.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from wirewise.collective import Network, Program, Transfer
from wirewise.collective.bounds import bound
from wirewise.errors import PlanError
from wirewise.planners.collective.combine import by_mirror
from wirewise.planners.collective.demands import block_bytes, demands, hops, pairs
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = ["Point", "pareto", "solve", "synthesize"]

_MOST_COLUMNS = 60_000
"""Size of a model above which no exact answer is to be hoped for."""


class Point(NamedTuple):
    """What a k-synchronous program costs."""

    chunks: int
    """Of a block."""
    steps: int
    rounds: int

    def predicted_s(self, network: Network, block_bytes: float) -> float:
        """Seconds of S alpha + R / C beta, with the largest latency of a route."""
        alpha = max((network.latency(s, t) for s, t in pairs(network)), default=0.0)
        narrowest = min(e.bandwidth_bytes_per_s for e in network.edges)
        return self.steps * alpha + self.rounds / self.chunks * block_bytes / narrowest


class _Send(NamedTuple):
    demand: int
    part: int
    source: int
    target: int
    step: int


def solve(problem: CollectiveProblem, point: Point, *, time_limit_s: float = 60.0) -> Program | None:
    """The program of exactly these chunks, steps and rounds; None: proved that there is none.

    Variables: does chunk c go from i to j in step s (binary). Constraints: a rank receives a chunk at most once, and
    once if it needs it; a chunk leaves a rank only in a later step than it came; an edge carries at most its width
    times the rounds of the step. Every split of the rounds among the steps is tried, the most even first.

    Raises:
        PlanError: The time limit ends the search before either is known, or the model is too large for it.
    """
    ends = time.monotonic() + time_limit_s
    columns = len(demands(problem)) * point.chunks * len(pairs(problem.network))
    if columns > _MOST_COLUMNS:
        raise PlanError(
            f"at least {columns} variables for {point}; expected at most {_MOST_COLUMNS}: use the planner greedy"
        )
    sends = _sends(problem, point)
    if sends is None:
        return None
    rows, least, most, step_rows = _rows(problem, point, sends)
    for rounds in _splits(point):
        most[step_rows.rows] = step_rows.width * np.array(rounds)[step_rows.step]
        left = ends - time.monotonic()
        found = _feasible(rows, least, most, left) if left > 0 else None
        if found is None:
            raise PlanError(
                f"{point} was not decided within {time_limit_s:g} s; allow more time or fewer chunks"
            )
        if found.size:
            return _program(
                problem, point, [send for send, taken in zip(sends, found, strict=True) if taken > 0.5]
            )
    return None


def pareto(
    problem: CollectiveProblem, *, time_limit_s: float = 60.0, slack: int = 4, most_chunks: int = 8
) -> Iterator[tuple[Point, Program]]:
    """Programs that no other beats in both steps and rounds a chunk, from the fewest steps on.

    Args:
        problem: A collective that moves.
        time_limit_s: For all of it; the walk ends early where a point is not decided.
        slack: Rounds above the number of steps that are tried (the k of k-synchronous).
        most_chunks: Of a block.
    """
    ends = time.monotonic() + time_limit_s
    wanted = demands(problem)
    far = hops(problem.network)
    fewest = max((int(far[d.source, t]) for d in wanted for t in d.targets), default=0)
    least, best = _least_rounds(problem), None
    for steps in range(fewest, problem.network.ranks + slack):
        for point in _by_rate(steps, slack, most_chunks):
            rate = Fraction(point.rounds, point.chunks)
            if best is not None and rate >= best:
                break
            left = ends - time.monotonic()
            if left <= 0:
                return
            try:
                program = solve(problem, point, time_limit_s=left)
            except PlanError:
                return
            if program is not None:
                best = rate
                yield point, program
                break
        if best is not None and best <= least:
            return


def synthesize(
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    point: Point | None = None,
    slack: int = 4,
    most_chunks: int = 8,
) -> Program:
    """The program of least S alpha + R / C beta on the Pareto front, or that of the point asked for.

    Args:
        problem: Any collective; those that add up are planned backwards.
        time_limit_s: For the search; the best so far is returned.
        seed: Not used: the search is exact.
        point: Chunks of a block, steps, rounds; None: walk the front.
        slack: As `pareto`.
        most_chunks: As `pareto`.

    Raises:
        PlanError: No program of the point exists, or none was found in time.
    """
    share = time_limit_s / (2 if problem.collective == "all_reduce" else 1)

    def plan(moving: CollectiveProblem) -> Program:
        if point is not None:
            found = solve(moving, point, time_limit_s=share)
            if found is None:
                raise PlanError(f"no program has {point}; raise the steps or the rounds, or lower the chunks")
            return found
        size = block_bytes(moving)
        front = list(pareto(moving, time_limit_s=share, slack=slack, most_chunks=most_chunks))
        if not front:
            raise PlanError(
                f"no program within {share:g} s on {moving.network.ranks} ranks; use the planner greedy"
            )
        return min(front, key=lambda one: one[0].predicted_s(moving.network, size))[1]

    return by_mirror(problem, plan)


def _by_rate(steps: int, slack: int, most_chunks: int) -> list[Point]:
    """Points of so many steps, the fewest rounds a chunk first."""
    found = [
        Point(chunks, steps, rounds)
        for rounds in range(steps, steps + slack + 1)
        for chunks in range(1, most_chunks + 1)
    ]
    return sorted(found, key=lambda p: (Fraction(p.rounds, p.chunks), p.chunks))


def _least_rounds(problem: CollectiveProblem) -> float:
    """Rounds a chunk below which the tightest cut allows no program."""
    least = bound(
        problem.network, problem.collective, problem.size_bytes, root=problem.root, members=problem.members
    )
    narrowest = min(e.bandwidth_bytes_per_s for e in problem.network.edges)
    return least.seconds * narrowest / block_bytes(problem) * (1 + 1e-9)


def _widths(network: Network) -> list[int]:
    """Chunks that each edge carries in a round."""
    narrowest = min(e.bandwidth_bytes_per_s for e in network.edges)
    return [int(e.bandwidth_bytes_per_s / narrowest * (1 + 1e-9)) for e in network.edges]


def _sends(problem: CollectiveProblem, point: Point) -> list[_Send] | None:
    """All transfers that can be of use; None: a target is further away than there are steps."""
    far, links, found = hops(problem.network), pairs(problem.network), list[_Send]()
    for number, demand in enumerate(demands(problem)):
        if any(far[demand.source, t] > point.steps for t in demand.targets):
            return None
        nearest = far[:, list(demand.targets)].min(axis=1, initial=problem.network.ranks)
        for s, t in links:
            steps = range(int(far[demand.source, s]), point.steps - int(nearest[t]))
            if t != demand.source:
                found += [_Send(number, c, s, t, step) for c in range(point.chunks) for step in steps]
    return found


class _StepRows(NamedTuple):
    """Constraints of edges in steps; each allows the width of its edge times the rounds of its step."""

    rows: NDArray[np.int64]
    width: NDArray[np.int64]
    step: NDArray[np.int64]


def _rows(
    problem: CollectiveProblem, point: Point, sends: list[_Send]
) -> tuple[csr_array, NDArray[np.float64], NDArray[np.float64], _StepRows]:
    """Constraints: matrix, lower and upper ends; those of edges are filled in by the caller."""
    into: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    over: dict[tuple[int, int], list[int]] = defaultdict(list)
    routes = {pair: problem.network.route(*pair) or () for pair in pairs(problem.network)}
    for column, send in enumerate(sends):
        into[send.demand, send.part, send.target].append(column)
        for edge in routes[send.source, send.target]:
            over[edge, send.step].append(column)
    entries: list[tuple[list[int], list[int], float, float]] = []
    for number, demand in enumerate(demands(problem)):
        for part, target in itertools.product(range(point.chunks), demand.targets):
            columns = into[number, part, target]
            entries.append((columns, [1] * len(columns), 1.0, 1.0))
        for part, relay in itertools.product(range(point.chunks), range(problem.network.ranks)):
            if relay not in demand.targets and (columns := into[number, part, relay]):
                entries.append((columns, [1] * len(columns), 0.0, 1.0))
        for_sources = [c for c, s in enumerate(sends) if s.demand == number and s.source != demand.source]
        for column in for_sources:
            send = sends[column]
            before = [c for c in into[number, send.part, send.source] if sends[c].step < send.step]
            entries.append(([column, *before], [1] + [-1] * len(before), -np.inf, 0.0))
    first = len(entries)
    entries += [(columns, [1] * len(columns), -np.inf, np.inf) for columns in over.values()]
    widths = _widths(problem.network)
    keys = np.array(list(over), dtype=np.int64).reshape(-1, 2)
    step_rows = _StepRows(first + np.arange(len(over)), np.array(widths)[keys[:, 0]], keys[:, 1])
    starts = np.cumsum([0, *(len(columns) for columns, *_ in entries)])
    index = np.fromiter(itertools.chain.from_iterable(e[0] for e in entries), np.int64)
    value = np.fromiter(itertools.chain.from_iterable(e[1] for e in entries), np.float64)
    matrix = csr_array((value, index, starts), shape=(len(entries), len(sends)))
    return matrix, np.array([e[2] for e in entries]), np.array([e[3] for e in entries]), step_rows


def _splits(point: Point) -> list[tuple[int, ...]]:
    """Rounds of each step, at least one each, the most even first; longer last steps before longer first ones."""
    cuts = itertools.combinations(range(1, point.rounds), point.steps - 1)
    found = [tuple(b - a for a, b in itertools.pairwise((0, *cut, point.rounds))) for cut in cuts]
    return sorted(found, key=lambda rounds: (math.prod(rounds) * -1, rounds))


def _feasible(
    rows: csr_array, least: NDArray[np.float64], most: NDArray[np.float64], limit_s: float
) -> NDArray[np.float64] | None:
    """A solution; empty: there is none; None: not known within the limit."""
    columns = rows.shape[1]
    result = milp(
        np.zeros(columns),
        integrality=np.ones(columns),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows, least, most),
        options={"time_limit": limit_s},
    )
    if result.x is not None:
        return np.asarray(result.x)
    return np.empty(0) if result.status == 2 else None


def _program(problem: CollectiveProblem, point: Point, sends: list[_Send]) -> Program:
    transfers = sorted(
        (Transfer(s.demand * point.chunks + s.part, s.source, s.target, s.step) for s in sends),
        key=lambda t: (t.step, t.source, t.target, t.chunk),
    )
    return Program(
        name=f"sccl-{point.chunks}-{point.steps}-{point.rounds}",
        collective=problem.collective,
        ranks=problem.network.ranks,
        chunks=point.chunks * len(demands(problem)),
        transfers=tuple(transfers),
        root=problem.root,
        members=problem.members,
    )
