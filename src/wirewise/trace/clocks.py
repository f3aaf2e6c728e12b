"""Quality of the clocks of an aligned trace."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from wirewise.errors import TraceError
from wirewise.trace.match import ENDS_TOGETHER, Match, causes, match
from wirewise.trace.records import Trace

__all__ = ["ClockQuality", "check_clocks", "clock_quality"]

_FAR_APART_S = 3600.0


class ClockQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of the clock of one rank of an aligned trace."""

    rank: int
    spread_s: float | None
    """Robust standard deviation of the ends of its collectives relative to other ranks. None without collectives."""
    uncertainty_s: float | None
    """Largest shift of its clock, the others fixed, that puts no effect before its cause, in seconds. None if nothing
    ties it to others."""


def clock_quality(trace: Trace) -> list[ClockQuality]:
    """Spread and uncertainty of the clock of each rank of an aligned trace.

    Raises:
        TraceError: Raised by `match`.
    """
    matches = match(trace)
    ends = _ends(matches, trace.world_size)
    room = _room(trace, matches)
    return [
        ClockQuality(rank=rank, spread_s=_spread(ends[rank]), uncertainty_s=_bound(*room[rank]))
        for rank in range(trace.world_size)
    ]


def check_clocks(trace: Trace) -> None:
    """Raise if the clocks of an aligned trace's ranks are far apart.

    Raises:
        TraceError: A step begins hours later on one rank than on another.
    """
    for number in trace.steps()[:1]:
        begins = [min(op.start_s for op in trace.of(rank, number)) for rank in range(trace.world_size)]
        early, late = int(np.argmin(begins)), int(np.argmax(begins))
        apart = begins[late] - begins[early]
        if apart > _FAR_APART_S:
            raise TraceError(
                f"step {number} begins {apart / 3600:.1f} hours later on rank {late} than on rank {early}, aligned "
                "as well as the trace allows: the ranks share no collective and no probe, and their real-time "
                "clocks are wrong; set the clocks, or record steps in which the ranks communicate"
            )


def _ends(matches: list[Match], ranks: int) -> list[list[float]]:
    """Seconds by which each rank was done later than the median of the others."""
    found: list[list[float]] = [[] for _ in range(ranks)]
    for one in matches:
        if one.collective in ENDS_TOGETHER and len(one.ranks) > 1:
            ends = np.array([op.end_s for op in one.ops])
            for place, rank in enumerate(one.ranks):
                found[rank].append(float(ends[place] - np.median(np.delete(ends, place))))
    return found


def _spread(later: list[float]) -> float | None:
    if not later:
        return None
    return 1.4826 * float(np.median(np.abs(np.array(later) - np.median(later))))


def _room(trace: Trace, matches: list[Match]) -> list[list[float]]:
    """Seconds by which the clock of each rank can go back and forward."""
    room = [[math.inf, math.inf] for _ in range(trace.world_size)]
    for cause, at, effect, then in causes(trace, matches):
        room[cause][1] = min(room[cause][1], max(then - at, 0.0))
        room[effect][0] = min(room[effect][0], max(then - at, 0.0))
    return room


def _bound(back: float, forward: float) -> float | None:
    most = max(back, forward)
    return most if math.isfinite(most) else None
