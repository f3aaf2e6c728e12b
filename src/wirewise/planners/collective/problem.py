"""What is decided on: a collective of a size on a network; and what a planner answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from wirewise.collective import COLLECTIVES, ROOTED, Collective, Network, Program, Transfer
from wirewise.errors import InputError

__all__ = ["CollectiveProblem", "Proposal", "proposal"]


@dataclass(frozen=True, kw_only=True)
class CollectiveProblem:
    """A collective, how much of it, and between whom.

    Raises:
        InputError: An unknown collective, a size that is not above 0, or ranks that the network does not have.
    """

    network: Network
    collective: Collective
    size_bytes: float
    """Bytes of the larger buffer of a rank, in or out."""
    root: int = 0
    """Rank of a rooted collective."""
    members: tuple[int, ...] = ()
    """Ranks of the group, ascending; none: all. The others may relay."""

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InputError(
                f"got the collective {self.collective!r}; expected one of {', '.join(COLLECTIVES)}"
            )
        if not (isfinite(self.size_bytes) and self.size_bytes > 0):
            raise InputError(f"got {self.size_bytes} bytes; expected a size above 0")
        ranks = range(self.network.ranks)
        if list(self.members) != sorted(set(self.members) & set(ranks)):
            raise InputError(
                f"got members {self.members}; expected ascending ranks from 0 to {len(ranks) - 1}"
            )
        if self.collective in ROOTED and self.root not in self.group:
            known = self.members or f"0 to {len(ranks) - 1}"
            raise InputError(f"got the root {self.root}; expected a rank of the group, {known}")

    @property
    def group(self) -> tuple[int, ...]:
        """Ranks that take part."""
        return self.members or tuple(range(self.network.ranks))

    def program(
        self, name: str, chunks: int, transfers: Iterable[Transfer], shares: tuple[float, ...] = ()
    ) -> Program:
        """The program of some transfers that solves the problem, step by step; chunks are equal without shares."""
        return Program(
            name=name,
            collective=self.collective,
            ranks=self.network.ranks,
            chunks=chunks,
            transfers=tuple(sorted(transfers, key=lambda t: (t.step, t.source, t.target, t.chunk))),
            root=self.root,
            members=self.members,
            shares=shares,
        )


class Proposal(NamedTuple):
    """A program, and what its planner has to say of it."""

    program: Program
    notes: tuple[str, ...] = ()
    """Remarks, such as the gap of a search that its time limit ended."""
    cut_short: bool = False
    """Whether the time limit ended the search before it had what it looks for."""


def proposal(answer: Program | Proposal) -> Proposal:
    """The answer of any planner: most have nothing to say of their program."""
    return answer if isinstance(answer, Proposal) else Proposal(answer)
