"""Collectives of one rank with all others along a tree: flat, binomial, chain, and two binary trees at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from wirewise.collective.builders.draft import Builder, Draft, RankGroup, mirrored, rounds, spread, then
from wirewise.collective.program import Transfer

__all__ = [
    "binomial_scatter",
    "broadcast_binary",
    "broadcast_binomial",
    "broadcast_chain",
    "broadcast_double_tree",
    "broadcast_flat",
    "gather_broadcast",
    "reduce_then_scatter",
    "scatter_flat",
    "to_root",
    "up_and_down",
]

Edges: TypeAlias = Iterator[tuple[int, int, int]]
"""Source, target and step of each branch of a tree."""


def _flat(group: RankGroup) -> Edges:
    return ((group.root, group.rank(v), v - 1) for v in range(1, group.ranks))


def _chain(group: RankGroup) -> Edges:
    return ((group.rank(v), group.rank(v + 1), v) for v in range(group.ranks - 1))


def _binomial(group: RankGroup) -> Edges:
    for step in range(rounds(group.ranks)):
        for v in range(min(1 << step, group.ranks - (1 << step))):
            yield group.rank(v), group.rank(v + (1 << step)), step


def _binary(group: RankGroup) -> Edges:
    for v in range(1, group.ranks):
        yield group.rank((v - 1) // 2), group.rank(v), (v + 1).bit_length() - 2


def broadcast_flat(group: RankGroup) -> Draft:
    """The root sends to one rank after the other."""
    return Draft(1, spread(_flat(group), range(1)))


def broadcast_chain(group: RankGroup) -> Draft:
    """Each rank passes on to the next; fast only in many segments."""
    return Draft(1, spread(_chain(group), range(1)))


def broadcast_binary(group: RankGroup) -> Draft:
    """Each rank passes on to two others at once."""
    return Draft(1, spread(_binary(group), range(1)))


def broadcast_binomial(group: RankGroup, chunks: int = 1) -> Draft:
    """Each step doubles the ranks that have the value."""
    return Draft(chunks, spread(_binomial(group), range(chunks)))


def scatter_flat(group: RankGroup) -> Draft:
    """The root sends each rank its block, one after the other."""
    return Draft(group.ranks, [Transfer(t, s, t, step) for s, t, step in _flat(group)])


def binomial_scatter(group: RankGroup) -> Draft:
    """The blocks of half of the places move on in each step, halves of halves in the next."""
    found: list[Transfer] = []
    levels = rounds(group.ranks)
    for step in range(levels):
        half = 1 << (levels - 1 - step)
        for v in range(0, group.ranks - half, 2 * half):
            blocks = range(v + half, min(v + 2 * half, group.ranks))
            found += [Transfer(group.rank(b), group.rank(v), group.rank(v + half), step) for b in blocks]
    return Draft(group.ranks, found)


def broadcast_double_tree(group: RankGroup) -> Draft:
    """Each half of the value goes down its own binary tree, and who has children in one is a leaf in the other.

    Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
    """
    others = group.ranks - 1
    parents = [0] * (others + 1)
    _in_order(1, others, 0, parents)
    found: list[Transfer] = []
    for chunk in range(2):
        place = _other_leaves(others) if chunk else range(others + 1)
        for parent, child, step in _downwards(parents, first_step=chunk):
            found.append(Transfer(chunk, group.rank(place[parent]), group.rank(place[child]), step))
    return Draft(2, found)


def _other_leaves(others: int) -> list[int]:
    """Where each place of the first tree goes, so that even places are leaves instead of odd ones."""
    if others % 2 == 0:
        return [0, *range(others, 0, -1)]
    return [0, *range(2, others + 1), 1]


def _in_order(first: int, last: int, parent: int, parents: list[int]) -> None:
    """A binary tree over places in which every second one, from the first, is a leaf."""
    if first > last:
        return
    top = first - 1 + (1 << ((last - first + 1).bit_length() - 1))
    parents[top] = parent
    _in_order(first, top - 1, top, parents)
    _in_order(top + 1, last, top, parents)


def _downwards(parents: Sequence[int], first_step: int) -> Edges:
    """Branches from place 0 down; the children of a place follow each other."""
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents[1:], 1):
        children[parent].append(child)
    open_ = [(0, first_step)]
    for parent, step in open_:
        for later, child in enumerate(children[parent]):
            yield parent, child, step + later
            open_.append((child, step + later + 1))


def to_root(builder: Builder, reduces: bool) -> Builder:
    """The reduce of a broadcast, or the gather of a scatter."""
    return lambda group: mirrored(builder(group), reduces)


def up_and_down(builder: Builder) -> Builder:
    """The all-reduce of a broadcast: reduce to rank 0 and broadcast, along the same branches."""

    def both(group: RankGroup) -> Draft:
        down = builder(group)
        return then(mirrored(down, reduces=True), down)

    return both


def gather_broadcast(group: RankGroup) -> Draft:
    """All-gather: gather to rank 0 and broadcast, both binomial."""
    gathered = mirrored(binomial_scatter(group), reduces=False)
    return then(gathered, broadcast_binomial(group, group.ranks))


def reduce_then_scatter(group: RankGroup) -> Draft:
    """Reduce-scatter: reduce to rank 0 and scatter, both binomial."""
    reduced = mirrored(broadcast_binomial(group, group.ranks), reduces=True)
    return then(reduced, binomial_scatter(group))
