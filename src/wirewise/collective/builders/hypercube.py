"""Recursive doubling and halving: in each step every rank exchanges with its neighbour in another dimension.

If the ranks are no power of two, extra ranks send their values first and wait for the result; see `draft.fold`.
"""

from __future__ import annotations

from wirewise.collective.builders.draft import Draft, RankGroup, concatenate, fold, mirror, power_of_two
from wirewise.collective.builders.trees import binomial_scatter
from wirewise.collective.program import Transfer

__all__ = [
    "all_gather_doubling",
    "all_reduce_doubling",
    "all_reduce_halving_doubling",
    "all_to_all_hypercube",
    "reduce_halving_gather",
    "reduce_scatter_halving",
]


def all_gather_doubling(group: RankGroup) -> Draft:
    """All-gather in which each step doubles the blocks that a rank has."""
    p, corners = group.ranks, fold(group.ranks)
    joined = [Transfer(c[1], c[1], c[0], 0) for c in corners[: p - len(corners)]]
    swapped = _doubling(corners, corners)
    back = [Transfer(b, c[0], c[1], 0) for c in corners if len(c) == 2 for b in range(p) if b != c[1]]
    return concatenate(Draft(p, joined), Draft(p, swapped), Draft(p, back))


def reduce_scatter_halving(group: RankGroup) -> Draft:
    """Reduce-scatter in which each step halves the blocks that a rank reduces."""
    return mirror(all_gather_doubling(group), reduces=True)


def all_reduce_doubling(group: RankGroup) -> Draft:
    """All-reduce in which each step doubles the ranks whose values are in the sum."""
    corners = fold(group.ranks)
    n = len(corners)
    swaps = [(j, k) for k in range(n.bit_length() - 1) for j in range(n)]
    swapped = [Transfer(0, corners[j][0], corners[j ^ (1 << k)][0], k, True) for j, k in swaps]
    return _folded(group, Draft(1, swapped))


def all_reduce_halving_doubling(group: RankGroup) -> Draft:
    """Reduce-scatter by halving, then all-gather by doubling (Rabenseifner 2004)."""
    down = _among_corners(group)
    return _folded(group, concatenate(mirror(down, reduces=True), down))


def reduce_halving_gather(group: RankGroup) -> Draft:
    """Reduce-scatter by halving, then gather by a binomial tree (Rabenseifner 2004)."""
    corners = fold(group.ranks)
    halved = mirror(_among_corners(group), reduces=True)
    gathered = mirror(binomial_scatter(RankGroup(len(corners))), reduces=False)
    there = [
        Transfer(t.chunk, corners[t.source][0], corners[t.target][0], t.step) for t in gathered.transfers
    ]
    placed = _folded(group, concatenate(halved, Draft(halved.chunks, there)), back=False)
    moved = [
        Transfer(t.chunk, group.rank(t.source), group.rank(t.target), t.step, t.reduces)
        for t in placed.transfers
    ]
    return Draft(placed.chunks, moved)


def all_to_all_hypercube(group: RankGroup) -> Draft:
    """All-to-all in which each step moves the chunks for the other side of one dimension.

    Raises:
        ProgramError: The number of ranks is no power of two.
    """
    p = group.ranks
    found: list[Transfer] = []
    for k in range(power_of_two(group, "the hypercube")):
        bit, done = 1 << k, (1 << k) - 1
        for chunk in range(p * p):
            source, target = divmod(chunk, p)
            if (source ^ target) & bit:
                here = (target & done) | (source & ~done)
                found.append(Transfer(chunk, here, here ^ bit, k))
    return Draft(p * p, found)


def _among_corners(group: RankGroup) -> Draft:
    """All-gather of one chunk a corner."""
    corners = fold(group.ranks)
    return Draft(len(corners), _doubling(corners, [(j,) for j in range(len(corners))]))


def _doubling(corners: list[tuple[int, ...]], blocks: list[tuple[int, ...]]) -> list[Transfer]:
    """All-gather among corners, each of which starts with some blocks."""
    found: list[Transfer] = []
    for k in range(len(corners).bit_length() - 1):
        for j, corner in enumerate(corners):
            first = j >> k << k
            held = [b for other in range(first, first + (1 << k)) for b in blocks[other]]
            found += [Transfer(b, corner[0], corners[j ^ (1 << k)][0], k) for b in held]
    return found


def _folded(group: RankGroup, among_corners: Draft, back: bool = True) -> Draft:
    """The sums of extra ranks go to their corners first, and the result comes back last."""
    chunks = among_corners.chunks
    pairs = [(c[0], c[1], chunk) for c in fold(group.ranks) if len(c) == 2 for chunk in range(chunks)]
    joined = Draft(chunks, [Transfer(chunk, extra, corner, 0, True) for corner, extra, chunk in pairs])
    result = Draft(chunks, [Transfer(chunk, corner, extra, 0) for corner, extra, chunk in pairs if back])
    return concatenate(joined, among_corners, result)
