"""Points of SCCL's front: cost of k-synchronous programs, and the mixed-integer program that decides one point."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import csr_array

from wirewise import work
from wirewise.collective import Network, Program, Transfer
from wirewise.collective.bounds import bound
from wirewise.errors import PlanError
from wirewise.planners.collective.demands import block_bytes, demands, hops, pairs
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.solvers import mixed_integer

__all__ = ["Point", "fewest_steps", "least_rounds", "least_s", "point_of", "solve"]

_MOST_COLUMNS = 60_000
"""Size of a model above which no exact answer is to be hoped for."""


class Point(NamedTuple):
    """Cost of a k-synchronous program."""

    chunks: int
    """Chunks of a block."""
    steps: int
    rounds: int

    def predicted_s(self, network: Network, block_bytes: float) -> float:
        """Predicted time S alpha + R / C beta with the largest route latency, in seconds."""
        alpha = max((network.latency(s, t) for s, t in pairs(network)), default=0.0)
        return self.steps * alpha + self.rounds / self.chunks * block_bytes / _narrowest(network)


def point_of(program: Program, problem: CollectiveProblem) -> Point:
    """Cost of any program as a k-synchronous one: each step lasts the rounds of its busiest edge."""
    loads: list[dict[int, float]] = [defaultdict(float) for _ in range(program.steps)]
    for transfer in program.transfers:
        for edge, fraction in problem.network.route(transfer.source, transfer.target) or ():
            loads[transfer.step][edge] += fraction
    wide = widths(problem.network)
    rounds = sum(
        max(math.ceil(load / wide[edge] * (1 - 1e-9)) for edge, load in step.items())
        for step in loads
        if step
    )
    return Point(program.chunks // len(demands(problem)), program.steps, rounds)


def fewest_steps(problem: CollectiveProblem) -> int:
    """Minimum number of steps: hops to the farthest target."""
    far = hops(problem.network)
    return max((int(far[d.source, t]) for d in demands(problem) for t in d.targets), default=0)


def least_rounds(problem: CollectiveProblem) -> float:
    """Lower bound on rounds per chunk, by the tightest cut."""
    least = bound(
        problem.network, problem.collective, problem.size_bytes, root=problem.root, members=problem.members
    )
    return least.seconds * _narrowest(problem.network) / block_bytes(problem) * (1 + 1e-9)


def least_s(problem: CollectiveProblem) -> float:
    """Lower bound on `Point.predicted_s`, in seconds: the longest path in steps, and the tightest cut."""
    size = block_bytes(problem)
    latencies_s = Point(1, fewest_steps(problem), 0).predicted_s(problem.network, size)
    return latencies_s + least_rounds(problem) * size / _narrowest(problem.network)


def widths(network: Network) -> list[int]:
    """Number of chunks that each edge carries per round."""
    narrowest = _narrowest(network)
    return [int(e.bandwidth_bytes_per_s / narrowest * (1 + 1e-9)) for e in network.edges]


def _narrowest(network: Network) -> float:
    return min(edge.bandwidth_bytes_per_s for edge in network.edges)


class _Send(NamedTuple):
    demand: int
    part: int
    source: int
    target: int
    step: int


def solve(problem: CollectiveProblem, point: Point, *, time_limit_s: float = 60.0) -> Program | None:
    """Find a program with exactly these chunks, steps and rounds. None if proved infeasible.

    Variables: whether chunk c is sent from i to j in step s (binary). Constraints: a rank receives a chunk at most
    once, and exactly once if it needs it; a chunk leaves a rank only in a later step than it arrived; an edge carries
    at most its width times the rounds of the step. Every split of the rounds among the steps is tried, the most even
    first.

    Raises:
        PlanError: The time limit ends the search undecided, or the model is too large for it.
    """
    ends = work.spent_s() + time_limit_s
    late = PlanError(f"{point} was not decided within {time_limit_s:g} s; allow more time or fewer chunks")
    if time_limit_s <= 0:
        raise late
    sends = _sends(problem, point)
    if sends is None:
        return None
    rows, least, most, step_rows = _rows(problem, point, sends)
    for rounds in _splits(point):
        most[step_rows.rows] = step_rows.width * np.array(rounds)[step_rows.step]
        left = ends - work.spent_s()
        found = _feasible(rows, least, most, left) if left > 0 else None
        if found is None:
            raise late
        if found.size:
            return _program(
                problem, point, [send for send, taken in zip(sends, found, strict=True) if taken > 0.5]
            )
    return None


def _sends(problem: CollectiveProblem, point: Point) -> list[_Send] | None:
    """All transfers that can be of use; None if a target is further away than there are steps.

    Raises:
        PlanError: There are too many.
    """
    far, links, found = hops(problem.network), pairs(problem.network), list[_Send]()
    wanted = demands(problem)
    if any(far[d.source, t] > point.steps for d in wanted for t in d.targets):
        return None
    for number, demand in enumerate(wanted):
        if len(found) > _MOST_COLUMNS:
            raise PlanError(
                f"more than {_MOST_COLUMNS} variables for {point}; expected fewer: use the planner greedy"
            )
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
    over: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    of_demand: dict[int, list[int]] = defaultdict(list)
    routes = {pair: problem.network.route(*pair) or () for pair in pairs(problem.network)}
    for column, send in enumerate(sends):
        into[send.demand, send.part, send.target].append(column)
        of_demand[send.demand].append(column)
        for edge, fraction in routes[send.source, send.target]:
            over[edge, send.step][column] = fraction
    entries: list[tuple[list[int], Sequence[float], float, float]] = []
    for number, demand in enumerate(demands(problem)):
        for part, target in itertools.product(range(point.chunks), demand.targets):
            columns = into[number, part, target]
            entries.append((columns, [1] * len(columns), 1.0, 1.0))
        for part, relay in itertools.product(range(point.chunks), range(problem.network.ranks)):
            if relay not in demand.targets and (columns := into[number, part, relay]):
                entries.append((columns, [1] * len(columns), 0.0, 1.0))
        for column in of_demand[number]:
            send = sends[column]
            if send.source == demand.source:
                continue
            before = [c for c in into[number, send.part, send.source] if sends[c].step < send.step]
            entries.append(([column, *before], [1] + [-1] * len(before), -np.inf, 0.0))
    first = len(entries)
    entries += [(list(parts), list(parts.values()), -np.inf, np.inf) for parts in over.values()]
    wide = widths(problem.network)
    keys = np.array(list(over), dtype=np.int64).reshape(-1, 2)
    step_rows = _StepRows(first + np.arange(len(over)), np.array(wide)[keys[:, 0]], keys[:, 1])
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
    rows: csr_array, least: NDArray[np.float64], maximum: NDArray[np.float64], limit_s: float
) -> NDArray[np.float64] | None:
    """A solution; empty: there is none; None if not known within the limit."""
    columns = rows.shape[1]
    result = mixed_integer(
        np.zeros(columns),
        budget_s=limit_s,
        integrality=np.ones(columns),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows, least, maximum),
    )
    if result.x is not None:
        return np.asarray(result.x)
    return np.empty(0) if result.status == 2 else None


def _program(problem: CollectiveProblem, point: Point, sends: list[_Send]) -> Program:
    transfers = [Transfer(s.demand * point.chunks + s.part, s.source, s.target, s.step) for s in sends]
    name = f"sccl-{point.chunks}-{point.steps}-{point.rounds}"
    return problem.program(name, point.chunks * len(demands(problem)), transfers)
