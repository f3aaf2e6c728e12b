"""What builders are made of: transfers of a group, one part after another, and parts run backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from wirewise.collective.program import Transfer
from wirewise.errors import ProgramError

__all__ = ["Builder", "Draft", "RankGroup", "fold", "mirrored", "power_of_two", "rounds", "spread", "then"]


class RankGroup(NamedTuple):
    """Whom an algorithm is built for."""

    ranks: int
    root: int = 0
    hosts: tuple[tuple[int, ...], ...] = ()
    """Ranks of each host; none: not known."""
    servers: int = 1
    """Ranks that sum up a part each, where an algorithm has such."""
    repeats: int = 0
    """Ranks after which all repeats, so that one transfer of each class is enough (`collective.regular`); 0: all are
    wanted."""

    @property
    def sources(self) -> range:
        """Ranks whose transfers are wanted."""
        return range(self.repeats or self.ranks)

    def rank(self, place: int) -> int:
        """Rank at a place, counted round from the root."""
        return (self.root + place) % self.ranks


class Draft(NamedTuple):
    """A program in the making."""

    chunks: int
    transfers: list[Transfer]


Builder: TypeAlias = Callable[[RankGroup], Draft]


def rounds(ranks: int) -> int:
    """Least steps in which one rank's value can reach all: log2, rounded up."""
    return (ranks - 1).bit_length()


def power_of_two(group: RankGroup, algorithm: str) -> int:
    """Dimensions of the hypercube that the ranks form.

    Raises:
        ProgramError: They form none.
    """
    if group.ranks & (group.ranks - 1):
        raise ProgramError(
            f"got {group.ranks} ranks; expected a power of two, as {algorithm} needs; choose another algorithm"
        )
    return rounds(group.ranks)


def fold(ranks: int) -> list[tuple[int, ...]]:
    """The places behind each corner of the largest hypercube that fits: the corner itself, then an extra place.

    The extra places hand over to the corner before them and wait for its result (Rabenseifner 2004, section 3).
    """
    corners = 1 << (ranks.bit_length() - 1)
    extra = ranks - corners
    pairs: list[tuple[int, ...]] = [(2 * j, 2 * j + 1) for j in range(extra)]
    return pairs + [(j,) for j in range(2 * extra, ranks)]


def then(*parts: Draft) -> Draft:
    """Parts one after the other; all have the same chunks."""
    found: list[Transfer] = []
    start = 0
    for part in parts:
        found += [Transfer(t.chunk, t.source, t.target, start + t.step, t.reduces) for t in part.transfers]
        start += _steps(part.transfers)
    return Draft(parts[0].chunks, found)


def mirrored(draft: Draft, reduces: bool) -> Draft:
    """The program run backwards: what spread from a rank comes together there.

    Args:
        draft: One that brings each chunk to a rank at most once.
        reduces: Whether values are added on the way, so that an all-gather turns into a reduce-scatter.
    """
    last = _steps(draft.transfers) - 1
    back = [Transfer(t.chunk, t.target, t.source, last - t.step, reduces) for t in reversed(draft.transfers)]
    return Draft(draft.chunks, back)


def spread(edges: Iterable[tuple[int, int, int]], chunks: Sequence[int]) -> list[Transfer]:
    """Transfers of the same chunks over each (source, target, step)."""
    return [Transfer(chunk, s, t, step) for s, t, step in edges for chunk in chunks]


def _steps(transfers: Iterable[Transfer]) -> int:
    return max((t.step for t in transfers), default=-1) + 1
