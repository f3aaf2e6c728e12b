"""Algorithms in which ranks talk to neighbours on a ring only."""

from __future__ import annotations

from wirewise.collective.builders.draft import Draft, RankGroup, concatenate, mirror
from wirewise.collective.builders.trees import binomial_scatter
from wirewise.collective.program import Transfer
from wirewise.errors import ProgramError

__all__ = [
    "all_gather_neighbours",
    "all_gather_ring",
    "all_reduce_ring",
    "all_to_all_ring",
    "broadcast_scatter_ring",
    "reduce_ring_gather",
    "reduce_scatter_ring",
]


def all_gather_ring(group: RankGroup, direction: int = 1) -> Draft:
    """All-gather round a ring; `direction` is 1 to send to the next rank, -1 to the previous one."""
    p = group.ranks
    moves = [(r, step) for step in range(p - 1) for r in group.sources]
    found = [Transfer((r - direction * step) % p, r, (r + direction) % p, step) for r, step in moves]
    return Draft(p, found)


def reduce_scatter_ring(group: RankGroup) -> Draft:
    """Reduce-scatter in which each block goes once round the ring to its rank, and each rank adds its part."""
    return mirror(all_gather_ring(group, direction=-1), reduces=True)


def all_reduce_ring(group: RankGroup) -> Draft:
    """Reduce-scatter, then all-gather, in the same direction (Patarasuk, Yuan 2009)."""
    return concatenate(reduce_scatter_ring(group), all_gather_ring(group))


def broadcast_scatter_ring(group: RankGroup) -> Draft:
    """Scatter by a binomial tree, then all-gather round the ring (van de Geijn)."""
    return concatenate(binomial_scatter(group), all_gather_ring(group))


def reduce_ring_gather(group: RankGroup) -> Draft:
    """Reduce-scatter round the ring, then gather by a binomial tree."""
    return concatenate(reduce_scatter_ring(group), mirror(binomial_scatter(group), reduces=False))


def all_gather_neighbours(group: RankGroup) -> Draft:
    """All-gather by neighbour exchange: each rank alternates between its two neighbours (Chen et al. 2005).

    Raises:
        ProgramError: The number of ranks is odd.
    """
    p = group.ranks
    if p % 2 and p > 1:
        raise ProgramError(
            f"got {p} ranks; expected an even number, as neighbour exchange needs; choose another algorithm"
        )
    found: list[Transfer] = []
    latest = [[r] for r in range(p)]
    for step in range(p // 2):
        partner = [(r + (1 if (r + step) % 2 == 0 else -1)) % p for r in range(p)]
        found += [Transfer(b, r, partner[r], step) for r in range(p) for b in latest[r]]
        got = [latest[partner[r]] for r in range(p)]
        latest = [latest[r] + got[r] for r in range(p)] if step == 0 else got
    return Draft(p, found)


def all_to_all_ring(group: RankGroup) -> Draft:
    """All-to-all in which each rank forwards blocks addressed to others to its successor."""
    p = group.ranks
    found: list[Transfer] = []
    for step in range(p - 1):
        for r in range(p):
            first = (r - step) % p
            chunks = [first * p + (first + offset) % p for offset in range(step + 1, p)]
            found += [Transfer(chunk, r, (r + 1) % p, step) for chunk in chunks]
    return Draft(p * p, found)
