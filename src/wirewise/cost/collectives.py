"""Closed-form costs of the known algorithms, as in textbooks.

A message of b bytes takes α + bβ between any two ranks, plus γ per reduced byte; a rank sends one message at a time
and receives one at a time (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH", 2005). Sizes are parts of the larger buffer of a rank, in or out.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from wirewise.collective import Collective, Program
from wirewise.collective.relations import REDUCING
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


class Counts(NamedTuple):
    """Traffic of a program, independent of the network."""

    rounds: int
    """Number of steps."""
    messages: int
    """Total number of messages of one segment."""
    rank_bytes: Fraction
    """Maximum bytes that any rank sends or receives."""


class ClosedForm(NamedTuple):
    """Cost of an algorithm: counts for one segment, time for all segments."""

    counts: Counts
    latencies: int
    """Messages in series on the critical path: the factor of the latency."""
    moved: Fraction
    """Factor of the time to move a byte, and of the size."""
    added: Fraction = Fraction(0)
    """Factor of the time to add a byte, and of the size."""

    def seconds(
        self, size_bytes: float, latency_s: float, s_per_byte: float, reduce_s_per_byte: float = 0.0
    ) -> float:
        """Time for given α, β and γ, in seconds."""
        per_byte = float(self.moved) * s_per_byte + float(self.added) * reduce_s_per_byte
        return self.latencies * latency_s + size_bytes * per_byte


class _Ranks:
    """The numbers that closed forms are made of."""

    def __init__(self, ranks: int) -> None:
        self.p = ranks
        self.log = (ranks - 1).bit_length()
        self.dimensions = ranks.bit_length() - 1
        self.corners = 1 << self.dimensions
        """Ranks of the largest hypercube that fits."""
        self.extra = ranks - self.corners
        self.folds = int(self.extra > 0)
        self.others = Fraction(ranks - 1, ranks)
        """All blocks but one."""
        self.other_corners = Fraction(self.corners - 1, self.corners)

    def even(self, rounds: int, m: int, moved: Fraction, added: Fraction = Fraction(0)) -> ClosedForm:
        """Every rank sends a message in each round, in `m` segments."""
        return ClosedForm(Counts(rounds, rounds * self.p, moved), rounds * m, moved, added)


Form = Callable[[_Ranks, int], ClosedForm]


def _flat(r: _Ranks, m: int) -> ClosedForm:
    return ClosedForm(Counts(r.p - 1, r.p - 1, Fraction(r.p - 1)), (r.p - 1) * m, Fraction(r.p - 1))


def _binomial(r: _Ranks, m: int) -> ClosedForm:
    return ClosedForm(Counts(r.log, r.p - 1, Fraction(r.log)), r.log * m, Fraction(r.log))


def _chain(r: _Ranks, m: int) -> ClosedForm:
    passes = r.p - 2 + m
    return ClosedForm(Counts(r.p - 1, r.p - 1, Fraction(1)), passes, Fraction(passes, m))


def _double_tree(r: _Ranks, m: int) -> ClosedForm:
    counts = Counts(2 + _depth(r.p - 1), 2 * (r.p - 1), Fraction(1))
    return ClosedForm(counts, 2 * (r.log + m), Fraction(r.log + m, m))


def _depth(places: int) -> int:
    """Steps down a binary tree in order, where the right child gets its value one step after the left one."""
    if places < 2:
        return 0
    left = (1 << (places.bit_length() - 1)) - 1
    right = places - 1 - left
    return max(1 + _depth(left), 2 + _depth(right) if right else 0)


def _scatter_flat(r: _Ranks, m: int) -> ClosedForm:
    return ClosedForm(Counts(r.p - 1, r.p - 1, r.others), (r.p - 1) * m, r.others)


def _scatter_binomial(r: _Ranks, m: int) -> ClosedForm:
    return ClosedForm(Counts(r.log, r.p - 1, r.others), r.log * m, r.others)


def _ring(r: _Ranks, m: int) -> ClosedForm:
    return r.even(r.p - 1, m, r.others)


def _bruck(r: _Ranks, m: int) -> ClosedForm:
    return r.even(r.log, m, r.others)


def _pat(r: _Ranks, m: int) -> ClosedForm:
    rounds = r.log if r.log <= 3 else (1 << (r.log - 3)) + 2
    return r.even(rounds, m, r.others)


def _doubling(r: _Ranks, m: int) -> ClosedForm:
    """The first corners stand for two ranks each, so they send the most."""
    swapped = sum((1 << k) + min(r.extra, 1 << k) for k in range(r.dimensions))
    back = r.folds * (r.p - 1)
    rounds = r.dimensions + 2 * r.folds
    counts = Counts(rounds, r.corners * r.dimensions + 2 * r.extra, Fraction(swapped + back, r.p))
    return ClosedForm(counts, rounds * m, Fraction(r.folds + swapped + back, r.p))


def _all_reduce_doubling(r: _Ranks, m: int) -> ClosedForm:
    rounds = r.dimensions + 2 * r.folds
    added = Fraction(r.dimensions + r.folds)
    counts = Counts(rounds, r.corners * r.dimensions + 2 * r.extra, added)
    return ClosedForm(counts, rounds * m, Fraction(rounds), added)


def _rabenseifner(r: _Ranks, m: int) -> ClosedForm:
    rounds = 2 * r.dimensions + 2 * r.folds
    moved = 2 * r.other_corners + r.folds
    counts = Counts(rounds, 2 * r.corners * r.dimensions + 2 * r.extra, moved)
    return ClosedForm(counts, rounds * m, moved + r.folds, r.other_corners + r.folds)


def _rabenseifner_reduce(r: _Ranks, m: int) -> ClosedForm:
    rounds = 2 * r.dimensions + r.folds
    moved = 2 * r.other_corners + r.folds
    counts = Counts(rounds, r.extra + r.corners * r.dimensions + r.corners - 1, moved)
    return ClosedForm(counts, rounds * m, moved, r.other_corners + r.folds)


def _all_reduce_double_tree(r: _Ranks, m: int) -> ClosedForm:
    once = _double_tree(r, m)
    most = min(Fraction(r.p, 2), Fraction(2))
    counts = Counts(2 * once.counts.rounds, 2 * once.counts.messages, most)
    return ClosedForm(counts, 2 * once.latencies, 2 * once.moved, once.moved)


def _all_to_all_bruck(r: _Ranks, m: int) -> ClosedForm:
    return r.even(r.log, m, Fraction(sum(d.bit_count() for d in range(r.p)), r.p))


def _added(form: Form) -> Form:
    """All that is moved is added too."""
    return lambda r, m: form(r, m)._replace(added=form(r, m).moved)


def _after(first: Form, second: Form, messages_add: bool = True) -> Form:
    """One after the other; the root sends in one what it receives in the other, unless both use the same way."""

    def both(r: _Ranks, m: int) -> ClosedForm:
        a, b = first(r, m), second(r, m)
        bytes_ = (a.counts.rank_bytes, b.counts.rank_bytes)
        most = sum(bytes_, Fraction(0)) if messages_add else max(bytes_)
        counts = Counts(a.counts.rounds + b.counts.rounds, a.counts.messages + b.counts.messages, most)
        return ClosedForm(counts, a.latencies + b.latencies, a.moved + b.moved, a.added + b.added)

    return both


CLOSED_FORMS: dict[tuple[Collective, str], Form] = {
    ("broadcast", "flat"): _flat,
    ("broadcast", "binomial"): _binomial,
    ("broadcast", "chain"): _chain,
    ("broadcast", "double_tree"): _double_tree,
    ("broadcast", "scatter_all_gather"): _after(_scatter_binomial, _ring),
    ("reduce", "flat"): _added(_flat),
    ("reduce", "binomial"): _added(_binomial),
    ("reduce", "chain"): _added(_chain),
    ("reduce", "double_tree"): _added(_double_tree),
    ("reduce", "reduce_scatter_gather"): _after(_added(_ring), _scatter_binomial),
    ("reduce", "rabenseifner"): _rabenseifner_reduce,
    ("scatter", "flat"): _scatter_flat,
    ("scatter", "binomial"): _scatter_binomial,
    ("gather", "flat"): _scatter_flat,
    ("gather", "binomial"): _scatter_binomial,
    ("all_gather", "ring"): _ring,
    ("all_gather", "neighbour_exchange"): lambda r, m: r.even(r.p // 2, m, r.others),
    ("all_gather", "recursive_doubling"): _doubling,
    ("all_gather", "bruck"): _bruck,
    ("all_gather", "pat"): _pat,
    ("all_gather", "gather_broadcast"): _after(_scatter_binomial, _binomial, messages_add=False),
    ("reduce_scatter", "ring"): _added(_ring),
    ("reduce_scatter", "pairwise"): _added(_ring),
    ("reduce_scatter", "recursive_halving"): _added(_doubling),
    ("reduce_scatter", "bruck"): _added(_bruck),
    ("reduce_scatter", "pat"): _added(_pat),
    ("reduce_scatter", "reduce_then_scatter"): _after(
        _added(_binomial), _scatter_binomial, messages_add=False
    ),
    ("all_reduce", "ring"): lambda r, m: r.even(2 * (r.p - 1), m, 2 * r.others, r.others),
    ("all_reduce", "recursive_doubling"): _all_reduce_doubling,
    ("all_reduce", "rabenseifner"): _rabenseifner,
    ("all_reduce", "reduce_broadcast"): _after(_added(_binomial), _binomial, messages_add=False),
    ("all_reduce", "double_tree"): _all_reduce_double_tree,
    ("all_to_all", "linear"): lambda r, m: ClosedForm(
        Counts(1, r.p * (r.p - 1), r.others), (r.p - 1) * m, r.others
    ),
    ("all_to_all", "pairwise"): _ring,
    ("all_to_all", "shift"): _ring,
    ("all_to_all", "ring"): lambda r, m: r.even(r.p - 1, m, Fraction(r.p - 1, 2)),
    ("all_to_all", "bruck"): _all_to_all_bruck,
    ("all_to_all", "hypercube"): _all_to_all_bruck,
}
"""Closed forms by collective and name of the algorithm."""


class LowerBound(NamedTuple):
    """Lower bound for algorithms without in-network reduction; factors as in `ClosedForm`."""

    latencies: int
    moved: Fraction
    added: Fraction

    def seconds(
        self, size_bytes: float, latency_s: float, s_per_byte: float, reduce_s_per_byte: float = 0.0
    ) -> float:
        """Largest of the three bounds, in seconds, which need not be reachable together."""
        each = (float(self.moved) * s_per_byte, float(self.added) * reduce_s_per_byte)
        return max(self.latencies * latency_s, size_bytes * max(each))


def count(program: Program) -> Counts:
    """Count the steps, messages and bytes of a program; fractions are rounded to a millionth.

    The bytes of a rank are the larger of those sent and those received.
    """
    sizes = [Fraction(size).limit_denominator(10**6) for size in program.chunk_bytes(1.0)]
    sent, received = [Fraction(0)] * program.ranks, [Fraction(0)] * program.ranks
    for t in program.transfers:
        sent[t.source] += sizes[t.chunk]
        received[t.target] += sizes[t.chunk]
    return Counts(program.steps, len(program.messages()), max((*sent, *received)))


def closed_form(collective: Collective, algorithm: str, ranks: int, segments: int = 1) -> ClosedForm:
    """Closed-form cost of a known algorithm.

    Args:
        collective: Name of the collective, such as "all_reduce".
        algorithm: Name as in `collective.builders`; the hierarchical ones have no closed form.
        ranks: Number of ranks, at least 2.
        segments: Number of pipelined segments.

    Returns:
        Exact for the program that is built, except in three cases: the time of double trees is approximate; PAT's
        rounds and messages are upper bounds beyond 16 ranks that are no power of two; and the time with several
        segments ignores overlap, though it is exact for chains.

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
    return form(_Ranks(ranks), segments)


def lower_bound(collective: Collective, ranks: int) -> LowerBound:
    """Lower bounds for ranks with one link each (Chan et al., "Collective communication", 2007)."""
    part = Fraction(ranks - 1, ranks)
    moved = {
        "broadcast": Fraction(min(ranks - 1, 1)),
        "reduce": Fraction(min(ranks - 1, 1)),
        "all_reduce": 2 * part,
    }
    added = part if collective in REDUCING else Fraction(0)
    return LowerBound((ranks - 1).bit_length(), moved.get(collective, part), added)
