"""TACCL: synthesize collective algorithms guided by a sketch of their shape.

A. Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023. Stage 1
routes chunks by an integer program (`routing`), stage 2 orders them on links (`ordering`), stage 3 merges contiguous
sends (`contiguity`). Beyond the paper: matched algorithms bound and warm-start the program, cuts prove optimality,
all ordering heuristics are tried, and simulation on the network decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from wirewise import work
from wirewise.collective import REDUCING, Collective, Network, Program
from wirewise.collective.relations import blocks
from wirewise.errors import InputError, PlanError
from wirewise.planners.collective.combine import MIRRORS, join_phases
from wirewise.planners.collective.deadline import Deadline, DeadlineReached
from wirewise.planners.collective.demands import block_bytes
from wirewise.planners.collective.greedy import synthesize as matched
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.taccl.derive import derive_topology
from wirewise.planners.collective.taccl.instance import instance
from wirewise.planners.collective.taccl.logical import Logical, logical
from wirewise.planners.collective.taccl.profiles import PROFILES, SKETCHES, LoadedProfile
from wirewise.planners.collective.taccl.sketch import Profile, Sketch, load_profile, load_sketch
from wirewise.planners.collective.taccl.solver import Result, solve

__all__ = [
    "PROFILES",
    "SKETCHES",
    "LoadedProfile",
    "Profile",
    "Result",
    "Sketch",
    "load_profile",
    "load_sketch",
    "results",
    "synthesize",
]

# 4 first: an all-gather on ndv2-sk-1 is 1.021 times the cut bound with 4 chunks a block, 1.041 times with 2.
_CHUNKUPS = (4, 1, 16, 2, 8)
_LEAST_S = 1.0
"""Time that the first matching may take even with a smaller budget; that of most machines takes less."""
_NEAR_MIRRORED = 1.02
"""Times the quickest reduce-scatter that one of another choice may take for its all-gather to be sought too; on dgx-1v
both halves take the same time with each choice, and the next best is 3 % slower."""
_MOST_SENDS = 1024
"""Sends of an algorithm, above which blocks are not divided further."""


def synthesize(
    problem: CollectiveProblem,
    *,
    sketch: Sketch | None = None,
    profile: Profile | LoadedProfile | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    heuristic: int | None = None,
) -> Program:
    """Synthesize the fastest program that the three stages find.

    Objective: time of the last arrival. Exponential in the worst case; each stage returns its best result within its
    part of the limit.

    Args:
        problem: Problem of any collective; reducing ones are planned as the reversed mirror.
        sketch: Shape of the algorithm. Defaults to one derived from the network.
        profile: Link costs for the sketch. A profile with a chunk size is scaled to the problem's; others are used
            unchanged. Defaults to the network's costs.
        time_limit_s: Time limit of the whole search, in seconds. If, without a sketch, it ends before the first
            matching, the program is that of the planner greedy.
        seed: Seed of matchings and solver.
        heuristic: Ordering heuristic. Defaults to trying all.

    Raises:
        InputError: A profile without a sketch, or a sketch that does not fit the network.
        PlanError: The sketch leaves targets unreachable.
    """
    try:
        found = results(
            problem, sketch=sketch, profile=profile, time_limit_s=time_limit_s, seed=seed, heuristic=heuristic
        )
    except DeadlineReached:
        # It matches links with chunks too, compiled.
        return matched(problem, time_limit_s=time_limit_s / 10, seed=seed)
    if problem.collective != "all_reduce":
        return found[0].program
    return join_phases(*(result.program for result in found))


def results(
    problem: CollectiveProblem,
    *,
    sketch: Sketch | None = None,
    profile: Profile | LoadedProfile | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    heuristic: int | None = None,
) -> list[Result]:
    """Run the stages; returns one result, or for an all-reduce those of its two halves.

    Arguments and errors are those of `synthesize`.

    Raises:
        Late: Without a sketch, the time limit ended before the first matching did.
    """
    if sketch is None and profile is not None:
        raise InputError("got a profile without a sketch; expected both, or a network alone")
    asked = partial(_results, sketch=sketch, profile=profile, seed=seed, heuristic=heuristic)
    if problem.collective != "all_reduce":
        return [_quickest(asked(problem, time_limit_s=time_limit_s))]
    share_s = time_limit_s / 2
    scatter = asked(replace(problem, collective="reduce_scatter"), time_limit_s=share_s)
    gather = asked(replace(problem, collective="all_gather"), time_limit_s=share_s, mirrored=scatter)
    return [_quickest(scatter), _quickest(gather)]


def _quickest(found: list[Result]) -> Result:
    return min(found, key=lambda result: result.predicted_s)


def _results(
    problem: CollectiveProblem,
    *,
    sketch: Sketch | None,
    profile: Profile | LoadedProfile | None,
    time_limit_s: float,
    seed: int,
    heuristic: int | None,
    mirrored: Sequence[Result] = (),
) -> list[Result]:
    """Results of the choices, at least one.

    With results of the mirrored collective, a choice with the same instance starts from its first stage, and is left
    out where the mirrored program is far from the quickest one.
    """
    worth_s = _NEAR_MIRRORED * min((result.predicted_s for result in mirrored), default=math.inf)
    upwards = problem.collective in REDUCING
    moving = MIRRORS[problem.collective] if upwards else problem.collective
    choices = list(_choices(problem, moving, upwards, sketch, profile))
    found, stop = list[Result](), work.spent_s() + time_limit_s
    for number, (topology, chunkup) in enumerate(choices):
        left_s = stop - work.spent_s()
        if number and left_s <= 0:
            break
        share_s = left_s / (len(choices) - number)
        # Only with a sketch the first matching may take its time: no other planner knows the sketch.
        deadline = Deadline(max(share_s, _LEAST_S)) if sketch is None else None
        asked = instance(topology(), moving, chunkup, problem.root, problem.members, deadline)
        same = next((result for result in mirrored if result.first.instance == asked), None)
        if same is not None and same.predicted_s > worth_s:
            continue
        first = same.first if same is not None else None
        try:
            found.append(
                solve(asked, problem, time_limit_s=share_s, seed=seed, heuristic=heuristic, first=first)
            )
        except DeadlineReached:
            continue  # fewer chunks may be quicker
        except PlanError:
            # Derived pairs can leave a matching without a way; those of another choice may not.
            if sketch is not None:
                raise
    if not found:
        raise DeadlineReached
    return found


def _choices(
    problem: CollectiveProblem,
    moving: Collective,
    upwards: bool,
    sketch: Sketch | None,
    profile: Profile | LoadedProfile | None,
) -> Iterator[tuple[Callable[[], Logical], int]]:
    """Logical topologies, made when they are asked for, and divisions of blocks to try."""
    network = problem.network.reversed if upwards else problem.network
    if sketch is not None:
        sketch = sketch.mirrored() if upwards else sketch
        yield partial(_sketched, problem, network, sketch, profile), sketch.chunkup
        return
    one = block_bytes(problem)
    # Ranks that each block goes to.
    reach = len(problem.group) - 1 if moving in ("broadcast", "all_gather") else 1
    relayed, straight = (derive_topology(network, one, direct=direct).hops for direct in (False, True))
    for direct in (False, True) if straight != relayed else (False,):
        for chunkup in _CHUNKUPS:
            sends = blocks(moving, len(problem.group)) * chunkup * reach
            if chunkup == 1 or sends <= _MOST_SENDS:
                yield partial(derive_topology, network, one / chunkup, direct=direct), chunkup


def _sketched(
    problem: CollectiveProblem, network: Network, sketch: Sketch, profile: Profile | LoadedProfile | None
) -> Logical:
    if profile is None:
        return derive_topology(network, block_bytes(problem) / sketch.chunkup, sketch=sketch)
    if isinstance(profile, LoadedProfile):
        profile = profile.at(block_bytes(problem) / sketch.chunkup)
        made = logical(profile.profile, sketch, profile.unit_s)
    else:
        made = logical(profile, sketch)
    if made.ranks != network.ranks:
        raise InputError(
            f"the sketch is for {made.ranks} ranks; network {network.name!r} has {network.ranks}; change nnodes"
        )
    missing = [pair for pair in made.hops if network.route(*pair) is None]
    if missing:
        raise InputError(
            f"the sketch sends from rank {missing[0][0]} to {missing[0][1]}, which network {network.name!r} joins "
            "only over other ranks; take the link out of the sketch or its profile"
        )
    return made
