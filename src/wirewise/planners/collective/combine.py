"""Programs derived from programs: reversed, concatenated, and renumbered.

A program that spreads chunks, reversed and with additions, reduces them: reduce is the mirror of broadcast, and
reduce-scatter that of all-gather, as the transfers of a chunk form a tree in which each rank receives once. Planners
therefore only plan non-reducing collectives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from wirewise.collective import REDUCING, ROOTED, Collective, Edge, Network, Program, Transfer
from wirewise.errors import ProgramError
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = [
    "MIRRORS",
    "assign_ranks",
    "is_symmetric",
    "join_phases",
    "plan_by_mirroring",
    "reduce_then_broadcast",
    "reverse_program",
    "split_chunks",
]

MIRRORS: dict[Collective, Collective] = {
    "broadcast": "reduce",
    "all_gather": "reduce_scatter",
    "scatter": "gather",
    "gather": "scatter",
    "reduce": "broadcast",
    "reduce_scatter": "all_gather",
}
"""Collective that the reversed program implements, by collective."""


def reverse_program(program: Program) -> Program:
    """Reverse a program, which then implements the mirrored collective.

    Raises:
        ProgramError: The collective has no mirror, or reduces.
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


def split_chunks(program: Program, factor: int) -> Program:
    """Split each chunk into `factor` equal ones that are sent together."""
    transfers = tuple(
        msgspec.structs.replace(t, chunk=t.chunk * factor + part)
        for t in program.transfers
        for part in range(factor)
    )
    shares = tuple(share for share in program.shares for _ in range(factor))
    return msgspec.structs.replace(
        program, chunks=program.chunks * factor, transfers=transfers, shares=shares
    )


def assign_ranks(program: Program, order: Sequence[int], problem: CollectiveProblem) -> Program:
    """Map a program to the members of a group: rank r's part is done by group rank `order[r]`.

    Blocks are renumbered with the ranks, so that each member still ends with its own result of the collective.
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


def reduce_then_broadcast(first: Program, second: Program) -> Program:
    """Concatenate a reduce-scatter and an all-gather, or a reduce and a broadcast, to an all-reduce.

    Raises:
        ProgramError: The collectives are others, or chunks differ in number or size.
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


def plan_by_mirroring(problem: CollectiveProblem, plan: Callable[[CollectiveProblem], Program]) -> Program:
    """Plan a reducing collective with a planner for non-reducing ones, by mirroring; pass others through.

    Args:
        problem: Problem of any collective.
        plan: Planner for broadcast, scatter, gather, all_gather and all_to_all. For an all-reduce it is called for
            two all-gathers, which are refined to the same number of chunks.
    """
    if problem.collective == "all_reduce":
        halves = [
            plan_by_mirroring(replace(problem, collective=c), plan) for c in ("reduce_scatter", "all_gather")
        ]
        return join_phases(*halves)
    if problem.collective not in REDUCING:
        return plan(problem)
    turned = replace(problem, network=problem.network.reversed, collective=MIRRORS[problem.collective])
    return reverse_program(plan(turned))


def join_phases(scatter: Program, gather: Program) -> Program:
    """Join a reduce-scatter and an all-gather to an all-reduce, after splitting chunks to the same number."""
    chunks = math.lcm(scatter.chunks, gather.chunks)
    return reduce_then_broadcast(*(split_chunks(one, chunks // one.chunks) for one in (scatter, gather)))


def is_symmetric(network: Network) -> bool:
    """Whether reversing every edge of a network leaves it unchanged, route by route."""
    turned = network.reversed
    if network.hashing is not None or sorted(network.edges) != sorted(turned.edges):
        return False

    def uses(one: Network, source: int, target: int) -> list[tuple[Edge, float]]:
        return sorted((one.edges[edge], fraction) for edge, fraction in one.route(source, target) or ())

    pairs = itertools.permutations(range(network.ranks), 2)
    return all(uses(network, s, t) == uses(turned, s, t) for s, t in pairs)
