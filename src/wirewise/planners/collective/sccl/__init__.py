"""Exact search for programs of few steps on small networks, from latency-optimal to bandwidth-optimal.

Z. Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, sections 3 and 4. In a k-synchronous
program (C, S, R) each block is C chunks, there are S steps, and step s lasts r_s >= 1 rounds, R in all. In a round an
edge carries chunks in proportion to its bandwidth, one on the slowest edge. The time is S alpha + (R / C) beta b,
where b is the bytes of a block. The paper uses an SMT solver; here it is a mixed-integer program for HiGHS: exact,
without a licence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from wirewise import work
from wirewise.collective import Program
from wirewise.errors import PlanError
from wirewise.planners.collective.combine import is_symmetric, plan_by_mirroring
from wirewise.planners.collective.demands import block_bytes
from wirewise.planners.collective.greedy import synthesize as greedy
from wirewise.planners.collective.problem import CollectiveProblem, Proposal
from wirewise.planners.collective.sccl.solve import (
    Point,
    fewest_steps,
    least_rounds,
    least_s,
    point_of,
    solve,
)

__all__ = ["Point", "pareto", "propose", "solve"]

_GREEDY = 0.1
"""Part of the time that is kept for the planner greedy, should the search not end."""
_ROUNDING = 1e-6
"""Relative error that a bound may have."""


def pareto(
    problem: CollectiveProblem, *, time_limit_s: float = 60.0, slack: int = 4, most_chunks: int = 8
) -> Iterator[tuple[Point, Program]]:
    """Enumerate the programs on the Pareto front of steps and rounds per chunk, from the fewest steps on.

    Args:
        problem: Problem of a non-reducing collective.
        time_limit_s: Total time limit, in seconds; enumeration ends early if a point is undecided.
        slack: Maximum rounds above the number of steps (the k of k-synchronous).
        most_chunks: Maximum number of chunks per block.
    """
    for point, program in _walk(problem, time_limit_s, slack, most_chunks):
        if program is not None:
            yield point, program


def propose(
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    point: Point | None = None,
    slack: int = 4,
    most_chunks: int = 8,
) -> Proposal:
    """Find the program with the least S alpha + R / C beta on the Pareto front, or that of a requested point.

    If the time limit ends the search before all is decided, the best program of the front so far or of the planner
    greedy is returned, with a note on its optimality gap.

    Args:
        problem: Problem of any collective; reducing ones are planned in reverse.
        time_limit_s: Time limit of the search, in seconds.
        seed: Seed of the planner greedy; the search itself is exact.
        point: Chunks per block, steps, rounds. Defaults to searching the front.
        slack: Slack as in `pareto`.
        most_chunks: Maximum number of chunks, as in `pareto`.

    Raises:
        PlanError: No program of the point exists, or the ranks are not connected.
    """
    share_s = time_limit_s / (2 if problem.collective == "all_reduce" else 1)
    notes: dict[str, None] = {}

    made: list[Program] = []

    def plan(moving: CollectiveProblem) -> Program:
        if made and is_symmetric(problem.network):
            # The other half of an all-reduce: the same search on the same network.
            return made[0]
        exact_s = (1 - _GREEDY) * share_s
        found = (
            _walk(moving, exact_s, slack, most_chunks, block_bytes(moving))
            if point is None
            else _decided(moving, point, exact_s)
        )
        program, told = _best(moving, list(found), _GREEDY * share_s, seed)
        notes.update(dict.fromkeys(told))
        made.append(program)
        return program

    return Proposal(plan_by_mirroring(problem, plan), tuple(notes))


_Answer = tuple[Point, Program | None]
"""A point and its program; None if not decided."""


def _walk(
    problem: CollectiveProblem,
    time_limit_s: float,
    slack: int,
    most_chunks: int,
    size_bytes: float | None = None,
) -> Iterator[_Answer]:
    """The front from the fewest steps on; it ends with the first point that is not decided in time.

    Args:
        problem: A collective that moves.
        time_limit_s: Seconds for all of it.
        slack: Slack as in `pareto`.
        most_chunks: Most chunks, as in `pareto`.
        size_bytes: Bytes of a block; only points that take less time than those before are looked for. None: all
            of the front.
    """
    ends, network = work.spent_s() + time_limit_s, problem.network
    least, best, best_s = least_rounds(problem), None, math.inf
    for steps in range(fewest_steps(problem), problem.network.ranks + slack):
        points = [
            Point(chunks, steps, rounds)
            for rounds in range(steps, steps + slack + 1)
            for chunks in range(1, most_chunks + 1)
            # The cut proves the others impossible: on dgx-1v 30 of 58 points, each an integer program otherwise.
            if Fraction(rounds, chunks) >= least * (1 - _ROUNDING)
        ]
        # The fewest rounds a chunk first.
        for point in sorted(points, key=lambda p: (Fraction(p.rounds, p.chunks), p.chunks)):
            rate = Fraction(point.rounds, point.chunks)
            if best is not None and rate >= best:
                break
            if size_bytes is not None and point.predicted_s(network, size_bytes) >= best_s:
                break
            try:
                program = solve(problem, point, time_limit_s=ends - work.spent_s())
            except PlanError:
                yield point, None
                return
            if program is not None:
                best = rate
                if size_bytes is not None:
                    best_s = point.predicted_s(network, size_bytes)
                yield point, program
                break
        if best is not None and best <= least:
            return


def _decided(problem: CollectiveProblem, point: Point, time_limit_s: float) -> list[_Answer]:
    """The one point; an error where it is proved that it has no program."""
    try:
        program = solve(problem, point, time_limit_s=time_limit_s)
    except PlanError:
        return [(point, None)]
    if program is None:
        raise PlanError(f"no program has {point}; raise the steps or the rounds, or lower the chunks")
    return [(point, program)]


def _best(
    problem: CollectiveProblem, found: list[_Answer], greedy_s: float, seed: int
) -> tuple[Program, list[str]]:
    """The quickest program by steps and rounds; without proof also of the greedy ones, with a note of the gap."""
    network, size = problem.network, block_bytes(problem)
    known = [(point.predicted_s(network, size), program) for point, program in found if program is not None]
    if known and found[-1][1] is not None:
        return min(known, key=lambda one: one[0])[1], []
    other = greedy(problem, time_limit_s=greedy_s, seed=seed)
    known.append((point_of(other, problem).predicted_s(network, size), other))
    seconds, program = min(known, key=lambda one: one[0])
    why = f"{found[-1][0]} was not decided in time" if found else "no program is within the slack"
    gap = 1 - min(least_s(problem) / seconds, 1.0) if seconds else 0.0
    return program, [
        f"{program.name} is not proved best, as {why}; by steps and rounds another may take up to {gap:.0%} less"
    ]
