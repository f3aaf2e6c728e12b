"""Closed forms: what the known algorithms cost, as textbooks count it.

A message of b bytes takes α + bβ between any two ranks and γ more for each byte that is added; a rank sends one
message at a time and receives one at a time (Thakur, Rabenseifner, Gropp, "Optimization of collective communication
operations in MPICH", 2005). Sizes are parts of the larger buffer of a rank, in or out.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from wirewise.collective import Collective, Program
from wirewise.collective.relations import REDUCING
from wirewise.cost.closed_forms import CLOSED_FORMS, ClosedForm, Counts, Ranks
from wirewise.errors import ProgramError

__all__ = [
    "CLOSED_FORMS",
    "ClosedForm",
    "Counts",
    "LowerBound",
    "closed_form",
    "count",
    "lower_bound",
]


class LowerBound(NamedTuple):
    """What no algorithm without help from the network beats; factors as in `ClosedForm`."""

    latencies: int
    moved: Fraction
    added: Fraction

    def seconds(
        self, size_bytes: float, latency_s: float, s_per_byte: float, reduce_s_per_byte: float = 0.0
    ) -> float:
        """The largest of the three bounds, which need not be reachable together."""
        each = (float(self.moved) * s_per_byte, float(self.added) * reduce_s_per_byte)
        return max(self.latencies * latency_s, size_bytes * max(each))


def count(program: Program) -> Counts:
    """Count the steps, messages and bytes of any program; its shares are rounded to a millionth.

    The bytes of a rank are what it sends or what it receives, whichever is more.
    """
    sizes = [Fraction(size).limit_denominator(10**6) for size in program.chunk_bytes(1.0)]
    sent, received = [Fraction(0)] * program.ranks, [Fraction(0)] * program.ranks
    for t in program.transfers:
        sent[t.source] += sizes[t.chunk]
        received[t.target] += sizes[t.chunk]
    return Counts(program.steps, len(program.messages()), max((*sent, *received)))


def closed_form(collective: Collective, algorithm: str, ranks: int, segments: int = 1) -> ClosedForm:
    """Cost of a known algorithm.

    Args:
        collective: Name of the collective, such as "all_reduce".
        algorithm: As in `collective.builders`; the hierarchical ones have no closed form.
        ranks: At least 2.
        segments: Parts that follow each other.

    Returns:
        Exact for the program that is built, but for three cases: the time of double trees is approximate; PAT's
        rounds and messages are upper bounds beyond 16 ranks that are no power of two; and the time in more than
        one segment leaves out what overlaps, though it is exact for chains.

    Raises:
        ProgramError: No closed form is known.
    """
    form = CLOSED_FORMS.get((collective, algorithm))
    if form is None or ranks < 2 or segments < 1:
        known = ", ".join(name for of, name in CLOSED_FORMS if of == collective)
        raise ProgramError(
            f"got {algorithm!r} of {collective} with {ranks} ranks in {segments} segments; expected one of {known}, "
            "at least 2 ranks and 1 segment; simulate the program instead"
        )
    return form(Ranks(ranks), segments)


def lower_bound(collective: Collective, ranks: int) -> LowerBound:
    """What each algorithm on ranks with one link each must take (Chan et al., "Collective communication", 2007)."""
    part = Fraction(ranks - 1, ranks)
    moved = {
        "broadcast": Fraction(min(ranks - 1, 1)),
        "reduce": Fraction(min(ranks - 1, 1)),
        "all_reduce": 2 * part,
    }
    added = part if collective in REDUCING else Fraction(0)
    return LowerBound((ranks - 1).bit_length(), moved.get(collective, part), added)
