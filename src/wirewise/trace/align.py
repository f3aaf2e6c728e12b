"""Alignment of all ranks' clocks.

Every rank has its own clock, with an offset and a drift relative to rank 0's. Three sources reveal them:

- round trips (`Probe`): the peer answered between sending and receiving, most likely in the middle;
- ends of collectives: all ranks are done at about the same time;
- causality: no rank is done with a collective before the last one has started it.

The first two are fitted by least squares that give outliers little weight (Huber), the last are inequalities
that hold afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.trace.least_squares import minimum_excess, solve_constrained
from wirewise.trace.match import ENDS_TOGETHER, Match, causes, match
from wirewise.trace.records import ClockFit, Op, Probe, RankTrace, Trace

__all__ = ["align", "match", "violations"]

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]

_DRIFT_S_PER_S = 1e-4
"""Drift to expect where little tells of it."""
_LAG_S = 50e-6
"""How much later than others a rank may always notice the end of a collective."""
_LEAST_ERROR_S = 5e-6
_PROBES_A_WINDOW, _WINDOWS = 5, 10
_MOST_MATCHES = 2000
_HUBER = 1.345
_ROUNDS = 20
_MARGIN_S = 1e-8
"""Keeps rounding from breaking an inequality."""


class _Pairs(NamedTuple):
    """Statements on two clocks, k of them: time `at` of rank `one` and time `other_at` of rank `other`."""

    one: Ints
    at: Vector
    other: Ints
    other_at: Vector

    @classmethod
    def of(cls, rows: Iterable[tuple[int, float, int, float]]) -> _Pairs:
        table = np.array(list(rows), dtype=np.float64).reshape(-1, 4)
        return cls(
            table[:, 0].astype(np.int64), table[:, 1].copy(), table[:, 2].astype(np.int64), table[:, 3].copy()
        )


class _Clocks(NamedTuple):
    """Where the unknowns start. Unknowns: offsets, drifts (times `span`) and lags of the ranks, each [N]."""

    guess: Vector
    """Offset at the reference, [N]."""
    reference: Vector
    """[N]"""
    span: float

    def rows(self, pairs: _Pairs, lags: bool) -> NDArray[np.float64]:
        """Derivative of (common time of `one` - that of `other`) by the unknowns, [k, 3 N]."""
        n, k = len(self.guess), np.arange(len(pairs.one))
        table = np.zeros((len(k), 3 * n))
        for sign, rank, at in ((1.0, pairs.one, pairs.at), (-1.0, pairs.other, pairs.other_at)):
            table[k, rank] += sign
            # A drift counts as the seconds that it makes from the middle of the run to its ends, so that all unknowns
            # are of one size, and a weak expectation of each is a time.
            table[k, n + rank] += sign * (at - self.reference[rank]) / self.span
            if lags:
                table[k, 2 * n + rank] += sign
        return table

    def difference(self, pairs: _Pairs) -> Vector:
        """Common time of `one` less that of `other` under the guess, [k]."""
        found: Vector = (pairs.at + self.guess[pairs.one]) - (pairs.other_at + self.guess[pairs.other])
        return found


def align(trace: Trace) -> Trace:
    """Align a trace to the clock of rank 0; the input is unchanged.

    Raises:
        TraceError: Raised by `match`.
    """
    if trace.aligned:
        return trace
    matches = match(trace)
    ends, probes, order = _ends(matches), _probes(trace), _Pairs.of(causes(trace, matches))
    clocks, notes = _guess(trace, ends, probes)
    fits, more = _fit(clocks, ends, probes, order)
    ranks = [_moved(rank, fits) for rank in trace.ranks]
    return Trace(ranks=ranks, aligned=True, offsets=fits, notes=trace.notes + notes + more)


def violations(trace: Trace) -> int:
    """Count pairs of ranks of which one finished a collective before the other had started it."""
    return sum(one.ops[i].start_s > one.ops[j].end_s for one in match(trace) for i, j in one.causes())


def _ends(matches: list[Match]) -> _Pairs:
    """Ends of collectives on two ranks that should be the same."""
    useful = [one for one in matches if one.collective in ENDS_TOGETHER and len(one.ranks) > 1]
    # Thinned evenly: drifts show between ends that are far apart, not in many of them.
    useful = useful[:: 1 + len(useful) // _MOST_MATCHES]
    rows = []
    for one in useful:
        n = len(one.ranks)
        # Each rank with those 1, 2, 4 ... places on: few pairs, and short ways between any two ranks.
        places = {
            tuple(sorted((i, (i + 2**step) % n))) for step in range((n - 1).bit_length()) for i in range(n)
        }
        for i, j in sorted(places):
            rows.append((one.ranks[i], one.ops[i].end_s, one.ranks[j], one.ops[j].end_s))
    return _Pairs.of(rows)


def _probes(trace: Trace) -> list[tuple[int, Probe]]:
    """Round trips that took least, of each two ranks and each part of the run."""
    by_pair: dict[tuple[int, int], list[Probe]] = defaultdict(list)
    for recorded in trace.ranks:
        for probe in recorded.header.probes:
            if (
                not probe.size_bytes
                and 0 <= probe.peer < trace.world_size
                and probe.received_s >= probe.sent_s
            ):
                by_pair[recorded.header.rank, probe.peer].append(probe)
    chosen = []
    for (rank, _), probes in by_pair.items():
        first, last = min(p.sent_s for p in probes), max(p.sent_s for p in probes)
        windows: dict[int, list[Probe]] = defaultdict(list)
        for probe in probes:
            windows[int(_WINDOWS * (probe.sent_s - first) / (last - first + 1e-9))].append(probe)
        # Queues only ever add time, so the quickest tell most; drift shows only between parts of the run.
        for window in windows.values():
            window.sort(key=lambda p: p.received_s - p.sent_s)
            chosen += [(rank, probe) for probe in window[:_PROBES_A_WINDOW]]
    return chosen


def _guess(trace: Trace, ends: _Pairs, probes: list[tuple[int, Probe]]) -> tuple[_Clocks, list[str]]:
    """Offsets to start from, along the pairs that link each rank to rank 0, else by the real-time clock."""
    n = trace.world_size
    apart: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one, at, other, other_at in zip(*ends, strict=True):
        apart[int(one), int(other)].append(float(other_at - at))
    for rank, probe in probes:
        apart[rank, probe.peer].append(probe.peer_s - (probe.sent_s + probe.received_s) / 2)
    links: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (one, other), values in apart.items():
        middle = float(np.median(values))
        links[other].append((one, middle))
        links[one].append((other, -middle))
    # Clocks may be years apart where microseconds are fitted, so the fit starts where any chain of pairs leads; which
    # chain does not matter, as all pairs are fitted together afterwards.
    offsets = {0: 0.0}
    waiting = [0]
    while waiting:
        rank = waiting.pop()
        for other, middle in links[rank]:
            if other not in offsets:
                offsets[other] = offsets[rank] + middle
                waiting.append(other)
    notes = []
    for rank in sorted(set(range(n)) - set(offsets)):
        offsets[rank] = _realtime(trace.ranks[rank]) - _realtime(trace.ranks[0])
        notes.append(
            f"rank {rank} shares no collective and no probe with rank 0; its clock was aligned by the real-time "
            "clocks only, which may be wrong by milliseconds or more"
        )
    times = [[t for op in rank.ops for t in (op.start_s, op.end_s)] or [0.0] for rank in trace.ranks]
    reference = np.array([(min(own) + max(own)) / 2 for own in times])
    span = max(max(own) - min(own) for own in times) / 2
    guess = np.array([offsets[rank] for rank in range(n)])
    return _Clocks(guess, reference, max(span, 1e-3)), notes


def _realtime(rank: RankTrace) -> float:
    """Real time less the rank's clock, in s; 0 where it is not known."""
    pairs = rank.header.clock_pairs
    return float(np.median([ns * 1e-9 - s for s, ns in pairs])) if pairs else 0.0


def _fit(
    clocks: _Clocks, ends: _Pairs, probes: list[tuple[int, Probe]], order: _Pairs
) -> tuple[list[ClockFit], list[str]]:
    n = len(clocks.guess)
    middles = _Pairs.of([(r, (p.sent_s + p.received_s) / 2, p.peer, p.peer_s) for r, p in probes])
    error = np.array([max((p.received_s - p.sent_s) / 4, _LEAST_ERROR_S) for _, p in probes])
    # Rank 0 is the reference. Nothing may tell of a rank, so each unknown has a weak expectation of 0.
    known = np.zeros(3 * n, dtype=bool)
    known[[0, n]] = True
    expected = np.concatenate([np.full(n, 1.0), np.full(n, _DRIFT_S_PER_S * clocks.span), np.full(n, _LAG_S)])
    fixed_rows = np.vstack([clocks.rows(middles, False) / error[:, None], np.diag(1.0 / expected)])[:, ~known]
    fixed_values = np.concatenate([-clocks.difference(middles) / error, np.zeros(3 * n)])
    # Only ends have lags: how late a rank notices an end is no matter of its clock, and only probes tell both apart.
    rows, values = clocks.rows(ends, True)[:, ~known], -clocks.difference(ends)
    x = np.zeros(int((~known).sum()))
    weight = np.full(len(values), 1.0 / _LAG_S)
    for _ in range(_ROUNDS):
        a = np.vstack([rows * weight[:, None], fixed_rows])
        b = np.concatenate([values * weight, fixed_values])
        # The weak expectations keep this well away from singular.
        x = np.linalg.solve(a.T @ a, a.T @ b)
        rest = np.abs(rows @ x - values)
        scale = max(1.4826 * float(np.median(rest)) if len(rest) else 0.0, 1e-6)
        # Rows are squared in the sum, so they get the roots of Huber's weights.
        weight = np.sqrt(np.minimum(1.0, _HUBER * scale / np.maximum(rest, 1e-12))) / scale
    bound_rows = clocks.rows(order, False)[:, ~known]
    x, excess = _within(a, b, bound_rows, -clocks.difference(order) - _MARGIN_S, x)
    full = np.zeros(3 * n)
    full[~known] = x
    fits = [
        ClockFit(
            offset_s=float(clocks.guess[r] + full[r]),
            drift=float(full[n + r] / clocks.span),
            reference_s=float(clocks.reference[r]),
        )
        for r in range(n)
    ]
    if excess == 0.0:
        return fits, []
    return fits, [
        f"no clocks fulfil all orders of events: a rank was done with a collective {excess * 1e6:.1f} us before "
        "another one had started it; the recorded times are that wrong"
    ]


def _within(
    a: NDArray[np.float64], b: Vector, g: NDArray[np.float64], h: Vector, x: Vector
) -> tuple[Vector, float]:
    """The best x within g x <= h, and by how much h had to be raised for that.

    Few inequalities matter, so only those are used that some solution before broke.
    """
    excess = 0.0
    used = np.zeros(len(h), dtype=bool)
    while True:
        over = g @ x - h - excess
        broken = (over > _MARGIN_S / 2) & ~used
        if not broken.any():
            return x, excess
        worst = np.argsort(np.where(broken, -over, np.inf), kind="stable")[: min(int(broken.sum()), 50)]
        used[worst] = True
        found = solve_constrained(a, b, g[used], h[used] + excess)
        if found is None:
            excess = minimum_excess(g, h) * (1 + 1e-6) + _MARGIN_S
            # Higher limits may free what was used, and only limits that bind may be in the fit.
            used[:] = False
            continue
        x = found


def _moved(rank: RankTrace, fits: list[ClockFit]) -> RankTrace:
    own = fits[rank.header.rank].common
    header = msgspec.structs.replace(
        rank.header,
        clock_pairs=[(own(s), ns) for s, ns in rank.header.clock_pairs],
        probes=[_moved_probe(probe, rank.header.rank, fits) for probe in rank.header.probes],
    )
    return RankTrace(header, [_moved_op(op, fits[rank.header.rank]) for op in rank.ops], rank.complete)


def _moved_op(op: Op, fit: ClockFit) -> Op:
    enqueued = fit.common(op.enqueued_s) if op.enqueued_s != -1.0 else -1.0
    return msgspec.structs.replace(
        op, start_s=fit.common(op.start_s), end_s=fit.common(op.end_s), enqueued_s=enqueued
    )


def _moved_probe(probe: Probe, rank: int, fits: list[ClockFit]) -> Probe:
    own = fits[rank].common
    if not 0 <= probe.peer < len(fits):
        return probe
    return Probe(
        peer=probe.peer,
        sent_s=own(probe.sent_s),
        peer_s=fits[probe.peer].common(probe.peer_s),
        received_s=own(probe.received_s),
        size_bytes=probe.size_bytes,
    )
