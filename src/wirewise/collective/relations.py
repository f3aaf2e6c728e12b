"""Initial and final blocks of each collective.

A buffer is divided into blocks, and a block into equal numbers of chunks. A chunk is one address: its values at ranks
are sums over sets of contributing ranks; a collective that only moves data is the case of a single contributor.
"""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["COLLECTIVES", "REDUCING", "ROOTED", "Collective", "blocks", "contributors", "receivers"]

Collective = Literal[
    "broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
REDUCING: frozenset[Collective] = frozenset({"reduce", "reduce_scatter", "all_reduce"})
"""Collectives that reduce; the others only move data."""
ROOTED: frozenset[Collective] = frozenset({"broadcast", "reduce", "scatter", "gather"})
"""Collectives with one rank that sends or gets all."""


def blocks(collective: Collective, members: int) -> int:
    """Number of blocks of a collective: one vector, one block per member, or one per pair of members."""
    if collective == "all_to_all":
        return members * members
    return 1 if collective in ("broadcast", "reduce", "all_reduce") else members


def contributors(collective: Collective, block: int, members: int, root: int) -> tuple[int, ...]:
    """Group ranks that hold the block at the start, or a partial sum of it in a reducing collective.

    Args:
        collective: Name of the collective.
        block: Index of the block; of an all-to-all, source times `members` plus target.
        members: Size of the group.
        root: Group rank of the root.
    """
    if collective in REDUCING:
        return tuple(range(members))
    if collective in ("broadcast", "scatter"):
        return (root,)
    return (block // members,) if collective == "all_to_all" else (block,)


def receivers(collective: Collective, block: int, members: int, root: int) -> tuple[int, ...]:
    """Group ranks that must hold the block, complete, at the end; arguments as in `contributors`."""
    if collective in ("reduce", "gather"):
        return (root,)
    if collective in ("scatter", "reduce_scatter"):
        return (block,)
    return (block % members,) if collective == "all_to_all" else tuple(range(members))
