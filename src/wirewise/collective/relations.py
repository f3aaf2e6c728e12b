"""What each collective starts from and must end with, block by block.

A buffer is divided into blocks, and a block into equal numbers of chunks. A chunk is one address: what ranks
hold of it are sums over sets of contributing ranks, and a collective that only moves data is the case of a single
contribution.
"""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["COLLECTIVES", "REDUCING", "ROOTED", "Collective", "blocks", "contributors", "receivers"]

Collective = Literal[
    "broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
REDUCING: frozenset[Collective] = frozenset({"reduce", "reduce_scatter", "all_reduce"})
"""Collectives that add up; the others move."""
ROOTED: frozenset[Collective] = frozenset({"broadcast", "reduce", "scatter", "gather"})
"""Collectives with one rank that sends or gets all."""


def blocks(collective: Collective, members: int) -> int:
    """Blocks of a collective: one vector, one block a member, or one a pair of members."""
    if collective == "all_to_all":
        return members * members
    return 1 if collective in ("broadcast", "reduce", "all_reduce") else members


def contributors(collective: Collective, block: int, members: int, root: int) -> tuple[int, ...]:
    """Places that hold the block at the start; of a reducing collective, that hold a summand of it.

    Args:
        collective: Name of the collective.
        block: Number of the block; of an all-to-all, source times `members` plus target.
        members: Size of the group.
        root: Place of the root in the group.
    """
    if collective in REDUCING:
        return tuple(range(members))
    if collective in ("broadcast", "scatter"):
        return (root,)
    return (block // members,) if collective == "all_to_all" else (block,)


def receivers(collective: Collective, block: int, members: int, root: int) -> tuple[int, ...]:
    """Places that must hold the block, complete, at the end; arguments as in `contributors`."""
    if collective in ("reduce", "gather"):
        return (root,)
    if collective in ("scatter", "reduce_scatter"):
        return (block,)
    return (block % members,) if collective == "all_to_all" else tuple(range(members))
