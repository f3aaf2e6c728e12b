"""Programs from programs: run backwards, one after the other, and networks seen backwards.

A program that spreads chunks, run backwards with additions, sums them up: reduce is the mirror of broadcast, and
reduce-scatter that of all-gather, as the transfers of a chunk are a tree in which each rank receives once. So planners
only plan collectives that move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from wirewise.collective import REDUCING, ROOTED, Collective, Program, Transfer
from wirewise.errors import ProgramError
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = [
    "MIRRORS",
    "backwards",
    "by_mirror",
    "joined",
    "refined",
    "renumbered",
    "summed_then_spread",
]

MIRRORS: dict[Collective, Collective] = {
    "broadcast": "reduce",
    "all_gather": "reduce_scatter",
    "scatter": "gather",
    "gather": "scatter",
    "reduce": "broadcast",
    "reduce_scatter": "all_gather",
}
"""Collective that a program does when it is run backwards."""


def backwards(program: Program) -> Program:
    """The program run from its end to its start, which does the mirrored collective.

    Raises:
        ProgramError: The collective has no mirror, or adds up.
    """
    mirror = MIRRORS.get(program.collective)
    if mirror is None or program.collective in REDUCING:
        raise ProgramError(
            f"cannot run {program.collective} backwards; expected one of "
            f"{', '.join(c for c in MIRRORS if c not in REDUCING)}"
        )
    last, adds = program.steps - 1, mirror in REDUCING
    turned = sorted(
        (Transfer(t.chunk, t.target, t.source, last - t.step, adds) for t in program.transfers),
        key=lambda t: t.step,
    )
    return msgspec.structs.replace(program, collective=mirror, transfers=tuple(turned))


def refined(program: Program, factor: int) -> Program:
    """Program with each chunk cut into `factor` equal ones that travel together."""
    transfers = tuple(
        msgspec.structs.replace(t, chunk=t.chunk * factor + part)
        for t in program.transfers
        for part in range(factor)
    )
    shares = tuple(share for share in program.shares for _ in range(factor))
    return msgspec.structs.replace(
        program, chunks=program.chunks * factor, transfers=transfers, shares=shares
    )


def renumbered(program: Program, order: Sequence[int], problem: CollectiveProblem) -> Program:
    """A program of as many ranks as a group has, done by the group: rank r's part by the group's place `order[r]`.

    Blocks are renumbered with the ranks, so that each member still ends with what the collective gives it.
    """
    group, each = problem.group, program.chunks // program.blocks
    blocks = _renumbered_blocks(program, order)
    chunks = [blocks[c // each] * each + c % each for c in range(program.chunks)]
    shares = list(program.shares)
    for chunk, share in enumerate(program.shares):
        shares[chunks[chunk]] = share
    transfers = tuple(
        Transfer(chunks[t.chunk], group[order[t.source]], group[order[t.target]], t.step, t.reduces)
        for t in program.transfers
    )
    return msgspec.structs.replace(
        program,
        ranks=problem.network.ranks,
        members=problem.members,
        root=group[order[program.root]] if program.collective in ROOTED else 0,
        transfers=transfers,
        shares=tuple(shares),
    )


def _renumbered_blocks(program: Program, order: Sequence[int]) -> list[int]:
    """New number of each block: a block belongs to no member, to one, or to a pair of them."""
    members = len(order)
    if program.blocks == members * members and program.collective == "all_to_all":
        return [order[b // members] * members + order[b % members] for b in range(program.blocks)]
    return [order[b] for b in range(members)] if program.blocks == members else [0]


def summed_then_spread(first: Program, second: Program) -> Program:
    """All-reduce: a reduce-scatter and then an all-gather, or a reduce and then a broadcast.

    Raises:
        ProgramError: Other collectives, or chunks that differ in number or in size.
    """
    pair = (first.collective, second.collective)
    if pair not in {("reduce_scatter", "all_gather"), ("reduce", "broadcast")}:
        raise ProgramError(
            f"got {pair[0]} and {pair[1]}; expected reduce_scatter, all_gather or reduce, broadcast"
        )
    if (first.chunks, first.shares, first.root) != (second.chunks, second.shares, second.root):
        raise ProgramError(
            f"got {first.chunks} and {second.chunks} chunks; expected the same number, shares and root"
        )
    after = first.steps
    later = tuple(msgspec.structs.replace(t, step=t.step + after) for t in second.transfers)
    return msgspec.structs.replace(
        first, collective="all_reduce", transfers=first.transfers + later, shares=first.shares, root=0
    )


def by_mirror(problem: CollectiveProblem, plan: Callable[[CollectiveProblem], Program]) -> Program:
    """Plan a collective that adds up with a planner of collectives that move; the others go to it as they are.

    Args:
        problem: Problem of any collective.
        plan: Planner for broadcast, scatter, gather, all_gather and all_to_all. For an all-reduce it is asked for
            two all-gathers, which are refined to the same number of chunks.
    """
    if problem.collective == "all_reduce":
        halves = [by_mirror(replace(problem, collective=c), plan) for c in ("reduce_scatter", "all_gather")]
        return joined(*halves)
    if problem.collective not in REDUCING:
        return plan(problem)
    turned = replace(problem, network=problem.network.reversed, collective=MIRRORS[problem.collective])
    return backwards(plan(turned))


def joined(scatter: Program, gather: Program) -> Program:
    """All-reduce of a reduce-scatter and an all-gather, whose chunks are first cut into the same number."""
    chunks = math.lcm(scatter.chunks, gather.chunks)
    return summed_then_spread(*(refined(one, chunks // one.chunks) for one in (scatter, gather)))
