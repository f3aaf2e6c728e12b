"""Rooted collectives along a tree: flat, binomial, chain, and two binary trees at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from wirewise.collective.builders.draft import (
    Builder,
    Draft,
    RankGroup,
    concatenate,
    mirror,
    rounds,
    transfers_over,
)
from wirewise.collective.program import Transfer

__all__ = [
    "binomial_scatter",
    "broadcast_binary",
    "broadcast_binomial",
    "broadcast_chain",
    "broadcast_double_tree",
    "broadcast_flat",
    "gather_broadcast",
    "reduce_broadcast",
    "reduce_then_scatter",
    "reverse_to_root",
    "scatter_flat",
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
    """Broadcast in which the root sends to one rank after another."""
    return Draft(1, transfers_over(_flat(group), range(1)))


def broadcast_chain(group: RankGroup) -> Draft:
    """Broadcast along a chain of ranks; fast only with many segments."""
    return Draft(1, transfers_over(_chain(group), range(1)))


def broadcast_binary(group: RankGroup) -> Draft:
    """Broadcast in which each rank forwards to two others at once."""
    return Draft(1, transfers_over(_binary(group), range(1)))


def broadcast_binomial(group: RankGroup, chunks: int = 1) -> Draft:
    """Broadcast in which each step doubles the ranks that have the value."""
    return Draft(chunks, transfers_over(_binomial(group), range(chunks)))


def scatter_flat(group: RankGroup) -> Draft:
    """Scatter in which the root sends each rank its block, one after another."""
    return Draft(group.ranks, [Transfer(t, s, t, step) for s, t, step in _flat(group)])


def binomial_scatter(group: RankGroup) -> Draft:
    """Scatter along a binomial tree: each step forwards the blocks of half of the remaining ranks."""
    found: list[Transfer] = []
    levels = rounds(group.ranks)
    for step in range(levels):
        half = 1 << (levels - 1 - step)
        for v in range(0, group.ranks - half, 2 * half):
            blocks = range(v + half, min(v + 2 * half, group.ranks))
            found += [Transfer(group.rank(b), group.rank(v), group.rank(v + half), step) for b in blocks]
    return Draft(group.ranks, found)


def broadcast_double_tree(group: RankGroup) -> Draft:
    """Broadcast with each half of the value down its own binary tree; inner ranks of one tree are leaves of the other.

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


def reverse_to_root(builder: Builder, reduces: bool) -> Builder:
    """Reverse a broadcast into a reduce, or a scatter into a gather."""
    return lambda group: mirror(builder(group), reduces)


def reduce_broadcast(builder: Builder) -> Builder:
    """Build an all-reduce from a broadcast: reduce to rank 0, then broadcast, along the same tree."""

    def both(group: RankGroup) -> Draft:
        down = builder(group)
        return concatenate(mirror(down, reduces=True), down)

    return both


def gather_broadcast(group: RankGroup) -> Draft:
    """All-gather: gather to rank 0 and broadcast, both binomial."""
    gathered = mirror(binomial_scatter(group), reduces=False)
    return concatenate(gathered, broadcast_binomial(group, group.ranks))


def reduce_then_scatter(group: RankGroup) -> Draft:
    """Reduce-scatter: reduce to rank 0 and scatter, both binomial."""
    reduced = mirror(broadcast_binomial(group, group.ranks), reduces=True)
    return concatenate(reduced, binomial_scatter(group))
