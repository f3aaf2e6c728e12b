"""TACCL: algorithms for collectives from a sketch of what they should look like.

A. Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023. Stage 1 routes
chunks by an integer program (`routing`), stage 2 orders them on links (`ordering`), stage 3 sends some together
(`contiguity`). Beyond the paper: matched algorithms bound and start the program, cuts prove it best, all orders
are tried, and the replay on the network decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from wirewise.collective import REDUCING, Collective, Network, Program
from wirewise.collective.relations import blocks
from wirewise.errors import InputError
from wirewise.planners.collective.combine import MIRRORS, joined
from wirewise.planners.collective.deadline import Deadline, Late
from wirewise.planners.collective.demands import block_bytes
from wirewise.planners.collective.greedy import synthesize as matched
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.taccl.derive import derived
from wirewise.planners.collective.taccl.instance import instance
from wirewise.planners.collective.taccl.logical import Logical, logical
from wirewise.planners.collective.taccl.profiles import PROFILES, SKETCHES, Measured
from wirewise.planners.collective.taccl.sketch import Profile, Sketch, load_profile, load_sketch
from wirewise.planners.collective.taccl.solver import Result, solve

__all__ = [
    "PROFILES",
    "SKETCHES",
    "Measured",
    "Profile",
    "Result",
    "Sketch",
    "load_profile",
    "load_sketch",
    "results",
    "synthesize",
]

_CHUNKUPS = (4, 1, 16, 2, 8)
_LEAST_S = 1.0
"""What the first matching may take even with less time; that of most machines does not."""
_MOST_SENDS = 1024
"""Sends of an algorithm, above which blocks are not divided further."""


def synthesize(
    problem: CollectiveProblem,
    *,
    sketch: Sketch | None = None,
    profile: Profile | Measured | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    heuristic: int | None = None,
) -> Program:
    """The quickest program that the three stages find.

    Objective: time of the last arrival. Exponential in the worst case; each stage returns its best after its part
    of the limit.

    Args:
        problem: Any collective; those that add up run the mirrored one backwards.
        sketch: What the algorithm should look like; None: derived from the network.
        profile: Costs of links for the sketch. One with the size of its chunk is brought to the problem's; another
            one is taken as it is. None: those of the network.
        time_limit_s: Seconds for the whole search. Where, without a sketch, it ends before the first matching does, the
            program is that of the planner greedy.
        seed: Seed of matchings and solver.
        heuristic: Rule of order; None: all are tried.

    Raises:
        InputError: A profile without a sketch, or a sketch that does not fit the network.
        PlanError: The sketch leaves targets out of reach.
    """
    try:
        found = results(
            problem, sketch=sketch, profile=profile, time_limit_s=time_limit_s, seed=seed, heuristic=heuristic
        )
    except Late:
        # It matches links with chunks too, compiled.
        return matched(problem, time_limit_s=time_limit_s / 10, seed=seed)
    if problem.collective != "all_reduce":
        return found[0].program
    return joined(*(result.program for result in found))


def results(
    problem: CollectiveProblem,
    *,
    sketch: Sketch | None = None,
    profile: Profile | Measured | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    heuristic: int | None = None,
) -> list[Result]:
    """What the stages found: one result, or of an all-reduce those of its two halves.

    Args and errors are those of `synthesize`.

    Raises:
        Late: Without a sketch, the time limit ended before the first matching did.
    """
    if sketch is None and profile is not None:
        raise InputError("got a profile without a sketch; expected both, or a network alone")
    if problem.collective == "all_reduce":
        halves: tuple[Collective, ...] = ("reduce_scatter", "all_gather")
        share_s = time_limit_s / len(halves)
        half = partial(
            results, sketch=sketch, profile=profile, time_limit_s=share_s, seed=seed, heuristic=heuristic
        )
        return [result for name in halves for result in half(replace(problem, collective=name))]
    upwards = problem.collective in REDUCING
    moving = MIRRORS[problem.collective] if upwards else problem.collective
    choices = list(_choices(problem, moving, upwards, sketch, profile))
    found, stop = list[Result](), time.perf_counter() + time_limit_s
    for number, (topology, chunkup) in enumerate(choices):
        left_s = stop - time.perf_counter()
        if number and left_s <= 0:
            break
        share_s = left_s / (len(choices) - number)
        # Only with a sketch the first matching may take its time: no other planner knows the sketch.
        deadline = Deadline(max(share_s, _LEAST_S)) if sketch is None else None
        asked = instance(topology(), moving, chunkup, problem.root, problem.members, deadline)
        try:
            found.append(solve(asked, problem, time_limit_s=share_s, seed=seed, heuristic=heuristic))
        except Late:
            continue  # fewer chunks may be quicker
    if not found:
        raise Late
    return [min(found, key=lambda result: result.predicted_s)]


def _choices(
    problem: CollectiveProblem,
    moving: Collective,
    upwards: bool,
    sketch: Sketch | None,
    profile: Profile | Measured | None,
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
    relayed, straight = (derived(network, one, direct=direct).hops for direct in (False, True))
    for direct in (False, True) if straight != relayed else (False,):
        for chunkup in _CHUNKUPS:
            sends = blocks(moving, len(problem.group)) * chunkup * reach
            if chunkup == 1 or sends <= _MOST_SENDS:
                yield partial(derived, network, one / chunkup, direct=direct), chunkup


def _sketched(
    problem: CollectiveProblem, network: Network, sketch: Sketch, profile: Profile | Measured | None
) -> Logical:
    if profile is None:
        return derived(network, block_bytes(problem) / sketch.chunkup, sketch=sketch)
    if isinstance(profile, Measured):
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
