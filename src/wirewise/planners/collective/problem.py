"""Problem of a collective of a given size on a network, and the result of a planner."""

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
    """Collective, its size, and its group on a network.

    Raises:
        InputError: The collective is unknown, the size is not positive, or the network lacks a rank.
    """

    network: Network
    collective: Collective
    size_bytes: float
    """Bytes of the larger buffer of a rank, in or out."""
    root: int = 0
    """Rank of a rooted collective."""
    members: tuple[int, ...] = ()
    """Ranks of the group, ascending; empty for all. Other ranks may relay."""

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
        """Participating ranks."""
        return self.members or tuple(range(self.network.ranks))

    def program(
        self, name: str, chunks: int, transfers: Iterable[Transfer], shares: tuple[float, ...] = ()
    ) -> Program:
        """Build the program of some transfers, step by step; chunks are equal without `shares`."""
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
    """Program, with its planner's notes."""

    program: Program
    notes: tuple[str, ...] = ()
    """Notes, such as the optimality gap of a search that hit its time limit."""
    cut_short: bool = False
    """Whether the search hit its time limit before it finished."""


def proposal(answer: Program | Proposal) -> Proposal:
    """Convert any planner's result to a proposal; most have no notes."""
    return answer if isinstance(answer, Proposal) else Proposal(answer)
