"""Detection of hung ranks: ranks report their calls, and the rank that lags behind is to blame.

A heartbeat thread shows that a process is alive, not that its training makes progress: user code may be blocked on a
file system forever. Each collective call has a number in its group, so a rank with a lower number than another has
not reached a call in which the other waits. Messages of a pipeline are counted at both ends, and nobody waits for
their receiver. A rank that waits itself is never to blame.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from types import FrameType

import msgspec

__all__ = [
    "CodeLocation",
    "RankProgress",
    "find_abandoned_ranks",
    "find_hung_ranks",
    "is_waiting_for",
    "locate_thread",
]

_STDLIB = sysconfig.get_paths()["stdlib"]
_IN_CALLS = (
    "/torch/distributed/",
    "/torch/nn/parallel/",
    "/wirewise/runtime/transport.py",
    "/wirewise/runtime/startup.py",
    "/wirewise/runtime/data_parallel/",
    "/wirewise/runtime/pipeline/messages.py",
    "/wirewise/runtime/pipeline/updates.py",
    "/wirewise/runtime/recovery/membership.py",
    "/wirewise/runtime/recovery/control.py",
    "/wirewise/runtime/recovery/recompute.py",
)
"""Files whose functions wait for other ranks."""
_IN_BACKWARD = ("/torch/autograd/",)
"""Files whose functions wait in C++, where DistributedDataParallel reduces, or compute."""


class CodeLocation(msgspec.Struct, frozen=True):
    """Code location of the training thread of a rank."""

    kind: str
    """State of the thread. "call": waits for other ranks. "backward": waits or computes. "user": runs user code."""
    where: str
    """File, line and function."""


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a rank: calls begun, messages, and the location of its thread."""

    generation: int
    """Generation that it has joined."""
    counts: dict[str, int]
    """Number of calls begun, by name of the group, and the step whose gradients it has."""
    done: dict[str, int] = {}
    """Number of messages sent along each line, and of updates of the weights."""
    awaits: dict[str, int] = {}
    """Number that it waits for another rank to reach, by the same names."""
    unchanged_s: float
    """Seconds since the last change of any of these."""
    place: CodeLocation


def locate_thread(thread: int) -> CodeLocation:
    """Locate a thread, by its innermost function outside Python's standard library."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith((_STDLIB, "<")):
        if "site-packages" in frame.f_code.co_filename:
            break
        frame = frame.f_back
    if frame is None:
        return CodeLocation("user", "no Python function")
    name = frame.f_code.co_filename
    kind = "call" if _is_in(name, _IN_CALLS) else "backward" if _is_in(name, _IN_BACKWARD) else "user"
    return CodeLocation(kind, f"{name}:{frame.f_lineno} ({frame.f_code.co_name})")


def _is_in(name: str, parts: Iterable[str]) -> bool:
    return any(part in name for part in parts)


def is_waiting_for(waiting: RankProgress, other: RankProgress) -> bool:
    """Whether a rank has begun a call, or joined a generation, that another has not reached."""
    if waiting.generation != other.generation:
        return waiting.generation > other.generation
    late_calls = (count > other.counts.get(name, count) for name, count in waiting.counts.items())
    return any(late_calls) or any(
        number > other.done.get(name, number) for name, number in waiting.awaits.items()
    )


def find_hung_ranks(standings: Mapping[int, RankProgress], limit_s: float) -> dict[int, str]:
    """Find ranks that others have waited for longer than a limit, with the cause in words.

    Args:
        standings: Progress of each rank.
        limit_s: Maximum time without progress, in seconds.

    Returns:
        Only ranks that wait for no other; empty if no rank waits.
    """
    stuck = [rank for rank, one in standings.items() if one.unchanged_s >= limit_s]
    blamed: dict[int, str] = {}
    for rank in stuck:
        own = standings[rank]
        waiting = [
            other
            for other in stuck
            if standings[other].place.kind != "user" and is_waiting_for(standings[other], own)
        ]
        if waiting and own.place.kind != "call" and not _waits(own, standings.values()):
            blamed[rank] = (
                f"no progress for {own.unchanged_s:.1f} s, while {_ranks(waiting)} waited for it; it was in "
                f"{own.place.where}"
            )
    return blamed


def find_abandoned_ranks(standings: Mapping[int, RankProgress], left: Collection[int], limit_s: float) -> str:
    """Find ranks blocked in a call for one that has left its loop, and will not reach it.

    Args:
        standings: Progress of each rank.
        left: Ranks that have left their loops.
        limit_s: Maximum time without progress, in seconds.

    Returns:
        Their names; "" if there are none.
    """
    waiting = [
        rank
        for rank, one in standings.items()
        if rank not in left and one.place.kind != "user" and one.unchanged_s >= limit_s
        if any(_has_begun_more(one, standings[other]) for other in left)
    ]
    return _ranks(waiting) if waiting else ""


def _has_begun_more(one: RankProgress, other: RankProgress) -> bool:
    """Whether a rank has begun a call of a group to which another has not come."""
    return any(count > other.counts.get(name, count) for name, count in one.counts.items() if name != "steps")


def _waits(one: RankProgress, others: Iterable[RankProgress]) -> bool:
    return any(is_waiting_for(one, other) for other in others)


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
