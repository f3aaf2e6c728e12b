"""Algorithms of doubling distances: Bruck et al. 1997, and the variant with the farthest rank first (PAT)."""

from __future__ import annotations

from wirewise.collective.builders.draft import Draft, RankGroup, mirror, rounds
from wirewise.collective.program import Transfer

__all__ = [
    "all_gather_bruck",
    "all_gather_pat",
    "all_to_all_bruck",
    "reduce_scatter_bruck",
    "reduce_scatter_pat",
]

PAT_BLOCKS = 8
"""Maximum number of blocks in a message of PAT, so that buffers are bounded whatever the number of ranks."""


def all_gather_bruck(group: RankGroup) -> Draft:
    """All-gather in which each step doubles the blocks that a rank has, received from the next ranks round the ring."""
    p = group.ranks
    found: list[Transfer] = []
    for step in range(rounds(p)):
        far = 1 << step
        moves = [(r, (r + later) % p) for r in group.sources for later in range(min(far, p - far))]
        found += [Transfer(block, r, (r - far) % p, step) for r, block in moves]
    return Draft(p, found)


def reduce_scatter_bruck(group: RankGroup) -> Draft:
    """Build the reduce-scatter that reverses `all_gather_bruck`."""
    return mirror(all_gather_bruck(group), reduces=True)


def all_to_all_bruck(group: RankGroup) -> Draft:
    """All-to-all in which each chunk takes the power-of-two hops that sum to its distance, the shortest first."""
    p = group.ranks
    found: list[Transfer] = []
    for step in range(rounds(p)):
        far = 1 << step
        for source in range(p):
            for distance in range(p):
                if distance & far:
                    here = (source + distance % far) % p
                    chunk = source * p + (source + distance) % p
                    found.append(Transfer(chunk, here, (here + far) % p, step))
    return Draft(p * p, found)


def all_gather_pat(group: RankGroup) -> Draft:
    """All-gather down one binomial tree per block, the farthest rank first, in messages of few blocks.

    Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale" (2025). Trees of all
    blocks run together while a message holds at most `PAT_BLOCKS`; beyond, parts of the trees follow each other.
    """
    p = group.ranks
    found: list[Transfer] = []
    for step, (far, distances) in enumerate(_pat_messages(p)):
        for r in range(p):
            found += [Transfer((r - d) % p, r, (r + far) % p, step) for d in distances]
    return Draft(p, found)


def reduce_scatter_pat(group: RankGroup) -> Draft:
    """Build the reduce-scatter that reverses `all_gather_pat`."""
    return mirror(all_gather_pat(group), reduces=True)


def _pat_messages(ranks: int) -> list[tuple[int, list[int]]]:
    """Distance over which every rank sends in each step, and distances that the blocks in it have come."""
    found: list[tuple[int, list[int]]] = []

    def go_down(held: list[int], far: int) -> None:
        while far:
            if len(held) > PAT_BLOCKS:
                half = len(held) // 2
                go_down(held[:half], far)
                held = held[half:]
                continue
            moving = [d for d in held if d + far < ranks]
            if moving:
                found.append((far, moving))
            held = held + [d + far for d in moving]
            far //= 2

    go_down([0], 1 << rounds(ranks) >> 1)
    return found
