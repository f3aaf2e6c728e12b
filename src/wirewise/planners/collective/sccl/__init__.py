"""Exact search for programs of few steps on small networks, from latency-optimal to bandwidth-optimal.

Z. Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, sections 3 and 4. In a k-synchronous
program (C, S, R) each block is C chunks, there are S steps, and step s lasts r_s >= 1 rounds, R in all. In a round
an edge carries as many chunks as it is times as wide as the narrowest one. The time is S alpha + (R / C) beta bytes
of a block. The paper asks an SMT solver; here it is a mixed-integer program for HiGHS: exact, without licence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction

from wirewise.collective import Program
from wirewise.errors import PlanError
from wirewise.planners.collective.combine import by_mirror
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


def pareto(
    problem: CollectiveProblem, *, time_limit_s: float = 60.0, slack: int = 4, most_chunks: int = 8
) -> Iterator[tuple[Point, Program]]:
    """Programs that no other beats in both steps and rounds a chunk, from the fewest steps on.

    Args:
        problem: A collective that moves.
        time_limit_s: Seconds for all of it; the walk ends early where a point is not decided.
        slack: Rounds above the number of steps that are tried (the k of k-synchronous).
        most_chunks: Most chunks of a block.
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
    """The program of least S alpha + R / C beta on the Pareto front, or that of the point asked for.

    Where the time limit ends the search before all is decided, the best program of the front so far or of the planner
    greedy is returned, and a note says how far from the best it can be.

    Args:
        problem: Any collective; those that add up are planned backwards.
        time_limit_s: Seconds for the search.
        seed: Seed of the planner greedy; the search itself is exact.
        point: Chunks of a block, steps, rounds; None: walk the front.
        slack: Slack as in `pareto`.
        most_chunks: Most chunks, as in `pareto`.

    Raises:
        PlanError: No program of the point exists, or nothing joins the ranks.
    """
    share_s = time_limit_s / (2 if problem.collective == "all_reduce" else 1)
    notes: dict[str, None] = {}

    def plan(moving: CollectiveProblem) -> Program:
        exact_s = (1 - _GREEDY) * share_s
        found = (
            _walk(moving, exact_s, slack, most_chunks) if point is None else _decided(moving, point, exact_s)
        )
        program, told = _best(moving, list(found), _GREEDY * share_s, seed)
        notes.update(dict.fromkeys(told))
        return program

    return Proposal(by_mirror(problem, plan), tuple(notes))


_Answer = tuple[Point, Program | None]
"""A point and its program; None: not decided."""


def _walk(problem: CollectiveProblem, time_limit_s: float, slack: int, most_chunks: int) -> Iterator[_Answer]:
    """The front from the fewest steps on; it ends with the first point that is not decided in time."""
    ends = time.monotonic() + time_limit_s
    least, best = least_rounds(problem), None
    for steps in range(fewest_steps(problem), problem.network.ranks + slack):
        points = [
            Point(chunks, steps, rounds)
            for rounds in range(steps, steps + slack + 1)
            for chunks in range(1, most_chunks + 1)
        ]
        # The fewest rounds a chunk first.
        for point in sorted(points, key=lambda p: (Fraction(p.rounds, p.chunks), p.chunks)):
            rate = Fraction(point.rounds, point.chunks)
            if best is not None and rate >= best:
                break
            try:
                program = solve(problem, point, time_limit_s=ends - time.monotonic())
            except PlanError:
                yield point, None
                return
            if program is not None:
                best = rate
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
