"""Time that ranks spend in collectives waiting for stragglers, apart from the transfer.

A rank is in a collective from its arrival until the end, so its wait is its duration minus that of the last rank to
arrive. This needs durations alone, no common clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from wirewise.trace.match import ENDS_TOGETHER
from wirewise.trace.records import Op, RankTrace

__all__ = ["LateRank", "late_ranks", "waits_of"]

_LEAST_LATE_S = 20e-6
"""Less is how exactly kernels of several devices begin."""


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """Rank that others wait for."""

    rank: int
    share: float
    """Fraction of all waiting that is for this rank, in [0, 1]."""


def waits_of(ranks: Sequence[RankTrace], ops_of_rank: Mapping[int, Sequence[Op]]) -> dict[int, list[float]]:
    """Time that each rank waits for later ones at the start of each of its ops, in seconds; 0 if unknown.

    Args:
        ranks: Traces of the ranks.
        ops_of_rank: Ops of each rank, by its index in `ranks`; only collectives of several ranks count.
    """
    found = {place: [0.0] * len(ops) for place, ops in ops_of_rank.items()}
    for members in _collectives(ops_of_rank).values():
        times = {place: ops[number].end_s - ops[number].start_s for place, number, ops in members}
        alike = {(ops[number].collective, ops[number].size_bytes) for _, number, ops in members}
        if len(times) < 2 or len(alike) > 1:
            continue
        transfer = min(times.values())
        for place, number, _ in members:
            wait = times[place] - transfer
            found[place][number] = wait if wait >= _LEAST_LATE_S else 0.0
    return found


def late_ranks(ranks: Sequence[RankTrace], ops_of_rank: Mapping[int, Sequence[Op]]) -> list[LateRank]:
    """Ranks that others wait for, by descending wait; arguments as in `waits_of`."""
    waits = waits_of(ranks, ops_of_rank)
    caused: dict[int, float] = defaultdict(float)
    for members in _collectives(ops_of_rank).values():
        own = {place: waits[place][number] for place, number, _ in members}
        if len(own) > 1 and (total := sum(own.values())) > 0:
            caused[min(own, key=own.__getitem__)] += total
    whole = sum(caused.values())
    rows = [LateRank(rank=ranks[place].header.rank, share=s / whole) for place, s in caused.items()]
    return sorted(rows, key=lambda one: -one.share)


def _collectives(
    ops_of_rank: Mapping[int, Sequence[Op]],
) -> dict[tuple[str, int], list[tuple[int, int, Sequence[Op]]]]:
    """(place of the rank, number of the op, its ops) of the members of each collective."""
    found: dict[tuple[str, int], list[tuple[int, int, Sequence[Op]]]] = defaultdict(list)
    for place, ops in ops_of_rank.items():
        for number, op in enumerate(ops):
            if op.seq >= 0 and (op.collective in ENDS_TOGETHER or not op.collective):
                found[op.group, op.seq].append((place, number, ops))
    return found
