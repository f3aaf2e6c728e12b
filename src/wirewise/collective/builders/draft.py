"""Building blocks of builders: transfers of a group, concatenation and reversal of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from wirewise.collective.program import Transfer
from wirewise.errors import ProgramError

__all__ = [
    "Builder",
    "Draft",
    "RankGroup",
    "concatenate",
    "fold",
    "mirror",
    "power_of_two",
    "rounds",
    "transfers_over",
    "waves",
]


class RankGroup(NamedTuple):
    """Ranks, root and hosts that an algorithm is built for."""

    ranks: int
    root: int = 0
    hosts: tuple[tuple[int, ...], ...] = ()
    """Ranks of each host; empty if unknown."""
    servers: int = 1
    """Number of parameter servers, each of which reduces a part, if the algorithm has any."""
    repeats: int = 0
    """Period in ranks after which transfers repeat, so that one of each class suffices (`collective.regular`); 0 to
    build all."""

    @property
    def sources(self) -> range:
        """Ranks whose transfers are built."""
        return range(self.repeats or self.ranks)

    def rank(self, position: int) -> int:
        """Rank at a position, counted round the ring from the root."""
        return (self.root + position) % self.ranks


class Draft(NamedTuple):
    """Program under construction."""

    chunks: int
    transfers: list[Transfer]


Builder: TypeAlias = Callable[[RankGroup], Draft]


def rounds(ranks: int) -> int:
    """Minimum number of steps for one rank's value to reach all: ceil(log2(ranks))."""
    return (ranks - 1).bit_length()


def power_of_two(group: RankGroup, algorithm: str) -> int:
    """Dimension of the hypercube formed by the ranks.

    Raises:
        ProgramError: The number of ranks is no power of two.
    """
    if group.ranks & (group.ranks - 1):
        raise ProgramError(
            f"got {group.ranks} ranks; expected a power of two, as {algorithm} needs; choose another algorithm"
        )
    return rounds(group.ranks)


def fold(ranks: int) -> list[tuple[int, ...]]:
    """Positions at each corner of the largest hypercube that fits: the corner itself, then possibly an extra rank.

    Extra ranks send their values to their corner and wait for its result (Rabenseifner 2004, section 3).
    """
    corners = 1 << (ranks.bit_length() - 1)
    extra = ranks - corners
    pairs: list[tuple[int, ...]] = [(2 * j, 2 * j + 1) for j in range(extra)]
    return pairs + [(j,) for j in range(2 * extra, ranks)]


def concatenate(*parts: Draft) -> Draft:
    """Run parts one after another; all have the same chunks."""
    found: list[Transfer] = []
    start = 0
    for part in parts:
        found += [Transfer(t.chunk, t.source, t.target, start + t.step, t.reduces) for t in part.transfers]
        start += _steps(part.transfers)
    return Draft(parts[0].chunks, found)


def mirror(draft: Draft, reduces: bool) -> Draft:
    """Reverse a program: a scatter becomes a gather, and with `reduces` a broadcast becomes a reduce.

    Args:
        draft: Draft that brings each chunk to a rank at most once.
        reduces: Whether values are summed on the way, so that an all-gather becomes a reduce-scatter.
    """
    last = _steps(draft.transfers) - 1
    back = [Transfer(t.chunk, t.target, t.source, last - t.step, reduces) for t in reversed(draft.transfers)]
    return Draft(draft.chunks, back)


def transfers_over(edges: Iterable[tuple[int, int, int]], chunks: Sequence[int]) -> list[Transfer]:
    """Build transfers of the same chunks over each (source, target, step)."""
    return [Transfer(chunk, s, t, step) for s, t, step in edges for chunk in chunks]


def _steps(transfers: Iterable[Transfer]) -> int:
    return max((t.step for t in transfers), default=-1) + 1


def waves(draft: Draft, count: int) -> Draft:
    """Split chunks into `count` parts, each one step behind the part before it.

    Segments are pipelined too, but each has priority over all later ones, so that transfers that end inside a host
    delay those that others wait for: an all-gather on 4 x 4 GPUs takes 1.14 times the bound in segments, 1.06 in 64
    waves.
    """
    return Draft(
        draft.chunks * count,
        [
            Transfer(t.chunk * count + part, t.source, t.target, t.step + part, t.reduces)
            for t in draft.transfers
            for part in range(count)
        ],
    )
