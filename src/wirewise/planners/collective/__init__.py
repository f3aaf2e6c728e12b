"""Planners of programs for collectives on a topology."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from wirewise.collective import Collective, Program, check
from wirewise.collective.bounds import Bound, bound_pair
from wirewise.errors import InputError, PlanError
from wirewise.planners.collective.adapt import synthesize as _adapt
from wirewise.planners.collective.auto import choose
from wirewise.planners.collective.blink import synthesize as _blink
from wirewise.planners.collective.deadline import Deadline
from wirewise.planners.collective.forest import propose as _forest
from wirewise.planners.collective.greedy import propose as _greedy
from wirewise.planners.collective.problem import CollectiveProblem, Proposal, proposal
from wirewise.planners.collective.sccl import propose as _sccl
from wirewise.planners.collective.segments import LEAST_TIME_S, hashed_s, with_best_segments
from wirewise.planners.collective.taccl import synthesize as _taccl
from wirewise.planners.faces import Planner, Problems, face
from wirewise.plans import Candidate, Certificate, CollectivePlan
from wirewise.sim.lowering.collective import network_of

__all__ = [
    "PLANNERS",
    "SYNTHESIZERS",
    "CollectiveProblem",
    "Proposal",
    "adapt",
    "auto",
    "blink",
    "forest",
    "greedy",
    "sccl",
    "taccl",
    "with_best_segments",
]

SYNTHESIZERS: dict[str, Callable[..., Program | Proposal]] = {
    "forest": _forest,
    "blink": _blink,
    "greedy": _greedy,
    "adapt": _adapt,
    "taccl": _taccl,
    "sccl": _sccl,
}
"""Synthesizers of programs, by name: `(problem, *, time_limit_s, seed, **knobs)`, to a program, or with notes; "auto"
tries them in this order, the quick ones first."""


def _planned(
    method: str, problem: CollectiveProblem, *, time_limit_s: float = 60.0, seed: int = 0, **knobs: Any
) -> CollectivePlan:
    """Plan with that planner; the program is checked, pipelined, simulated and held against the bound.

    Args:
        method: "auto" or a name in `SYNTHESIZERS`.
        problem: Collective to plan.
        time_limit_s: Limit of the search, in seconds of work on a quiet processor: it is counted (`wirewise.work`), so
            that a busy machine takes longer and finds the same plan. Checks and the choice of segments come on top.
        seed: Seed of random choices.
        knobs: Knobs of the planner, such as `sketch` of "taccl".

    Raises:
        InputError: A time limit that is not above 0.
        PlanError: It has no program for this problem.
    """
    if not time_limit_s > 0:
        raise InputError(f"got a time limit of {time_limit_s:g} s; expected a number above 0")
    start, clock = time.monotonic(), Deadline(time_limit_s)
    candidates: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    if method == "auto":
        program, candidates, predicted_s, limits, notes = choose(
            problem, SYNTHESIZERS, time_limit_s=time_limit_s, seed=seed, **knobs
        )
    else:
        answer = SYNTHESIZERS[method](problem, time_limit_s=time_limit_s, seed=seed, **knobs)
        program, notes, cut_short = proposal(answer)
        left_s = max(clock.left_s, LEAST_TIME_S)
        program, predicted_s = with_best_segments(
            program, problem.network, problem.size_bytes, time_limit_s=left_s
        )
        if cut_short or clock.left_s <= 0:
            program, predicted_s, why = _or_known(problem, program, predicted_s, time_limit_s)
            notes = (*notes, why)
        limits = bound_pair(
            problem.network,
            problem.collective,
            problem.size_bytes,
            root=problem.root,
            members=problem.members,
        )
    check(program)
    network, size_bytes = problem.network, problem.size_bytes
    synthesis_s = time.monotonic() - start
    return CollectivePlan(
        world_size=network.ranks,
        planner=method,
        seed=seed,
        program=program,
        size_bytes=round(size_bytes),
        topology=network.name,
        bound_s=limits.network.seconds,
        predicted_s=predicted_s,
        certificate=_certificate(limits.network),
        bound_routes_s=limits.routes.seconds if limits.routes else None,
        certificate_routes=_certificate(limits.routes) if limits.routes else None,
        hashed_s=hashed_s(program, network, size_bytes),
        synthesis_s=synthesis_s,
        candidates=candidates,
        notes=notes,
    )


def _certificate(limit: Bound) -> Certificate:
    return Certificate(
        cut=limit.cut,
        # A group of one rank has nothing to send, and JSON no infinity.
        bandwidth_bytes_per_s=limit.bandwidth_bytes_per_s if limit.seconds else 0.0,
        parts=limit.parts,
    )


def _or_known(
    problem: CollectiveProblem, program: Program, predicted_s: float, time_limit_s: float
) -> tuple[Program, float, str]:
    """Result of a search that was cut short, or a known algorithm that is faster; seconds, and a note."""
    why = f"the time limit of {time_limit_s:g} s was reached"
    try:
        known = choose(problem, {}, time_limit_s=LEAST_TIME_S, gain=0.0)
    except PlanError:
        return program, predicted_s, why
    if known.seconds >= predicted_s:
        return program, predicted_s, why
    name = known.program.name
    return (
        known.program,
        known.seconds,
        f"{why}, and {name} is quicker than {program.name}, {predicted_s:.3g} s",
    )


def _of_name(
    job: str, links: Any, *, size_bytes: float, root: int = 0, members: tuple[int, ...] = ()
) -> CollectiveProblem:
    """The problem of a collective's name, on the graph that a topology or its links hold.

    Args:
        job: Name of the collective, such as "all_reduce".
        links: Topology, or links of one.
        size_bytes: Size of the larger buffer of a rank, in or out.
        root: Rank that a rooted collective starts from or ends at.
        members: Ranks that take part, ascending. Defaults to all.
    """
    return CollectiveProblem(
        network=network_of(links),
        collective=cast(Collective, job),
        size_bytes=size_bytes,
        root=root,
        members=members,
    )


_PROBLEMS = Problems("a collective on a network", CollectiveProblem, {str: _of_name})

PLANNERS: dict[str, Planner] = {
    name: face(partial(_planned, name), name, _PROBLEMS, budget="time_limit_s")
    for name in ("auto", *SYNTHESIZERS)
}
"""Planners by name."""

# The functions stand before the modules of the same names, which keep what else there is of each.
auto, adapt, blink, forest = (PLANNERS[name] for name in ("auto", "adapt", "blink", "forest"))
greedy, sccl, taccl = (PLANNERS[name] for name in ("greedy", "sccl", "taccl"))
