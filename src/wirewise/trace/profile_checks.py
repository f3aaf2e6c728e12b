"""Consistency checks of the times in a torch.profiler file: sequential events must not overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wirewise.errors import TraceError
from wirewise.trace.profiles import ProfileEvent

__all__ = ["check_steps", "check_times"]

_LEAST = 4
"""Fewer odd events are no sign of damage: clocks are rounded, and kernels of a graph may begin a little early."""
_SHARE = 0.1
"""Fraction of odd events from which a file is damaged. Of 12 public traces of GPUs none has more than 0.02."""
_EARLY_US = 1000.0


def check_times(
    spans: Sequence[ProfileEvent],
    source: str,
    on_device: Callable[[ProfileEvent], bool],
    launch_of: Callable[[ProfileEvent], ProfileEvent | None],
) -> None:
    """Reject inconsistent times.

    Args:
        spans: Events with a duration, sorted by their starts.
        source: Name of the file in messages.
        on_device: Whether an accelerator ran an event.
        launch_of: Function that returns the launch of an accelerator's event, if known.

    Raises:
        TraceError: Durations are negative, kernels of one stream overlap, events of a thread lack a start, or kernels
            begin long before they are launched.
    """
    if negative := [e for e in spans if e.dur < 0]:
        raise _damaged(source, f"{negative[0].name!r} lasts {negative[0].dur:g} us")
    streams: dict[tuple[Any, ...], list[ProfileEvent]] = defaultdict(list)
    threads: dict[tuple[Any, ...], list[ProfileEvent]] = defaultdict(list)
    for e in spans:
        own = (e.pid, e.tid, e.args.get("device"), e.args.get("stream")) if on_device(e) else (e.pid, e.tid)
        (streams if len(own) > 2 else threads)[own].append(e)
    for key, kernels in streams.items():
        _expect_few(
            _overlapping(kernels),
            kernels,
            source,
            f"on stream {key[3]} begin before the one before has ended",
        )
    for key, events in threads.items():
        if events[-1].ts > 0:
            _expect_few(
                [e for e in events if e.ts == 0], events, source, f"of thread {key[1]} have the start 0"
            )
    kernels = [e for own in streams.values() for e in own]
    early = [e for e in kernels if (launch := launch_of(e)) is not None and e.ts < launch.ts - _EARLY_US]
    _expect_few(
        early, kernels, source, f"of the device begin more than {_EARLY_US / 1000:g} ms before their launch"
    )


def check_steps(marks: Iterable[tuple[float, float, int]], source: str) -> None:
    """Reject overlapping steps.

    Args:
        marks: Start, end in microseconds and number of each step, by number.
        source: Name of the file in messages.

    Raises:
        TraceError: A step begins in the first half of the one before, or before it.
    """
    before: tuple[float, float, int] | None = None
    for mark in marks:
        if before is not None and mark[0] < 0.5 * (before[0] + before[1]):
            raise _damaged(source, f"step {mark[2]} begins before step {before[2]} is half over")
        before = mark


def _overlapping(kernels: Sequence[ProfileEvent]) -> list[ProfileEvent]:
    """Kernels of which another one of the stream runs beside more than a half."""
    found, until = [], -float("inf")
    for e in kernels:
        if until - e.ts > 0.5 * e.dur and e.dur > 0:
            found.append(e)
        until = max(until, e.end)
    return found


def _expect_few(odd: Sequence[ProfileEvent], events: Sequence[ProfileEvent], source: str, words: str) -> None:
    if len(odd) >= _LEAST and len(odd) > _SHARE * len(events):
        raise _damaged(source, f"{len(odd)} of {len(events)} events {words}, such as {odd[0].name[:80]!r}")


def _damaged(source: str, words: str) -> TraceError:
    return TraceError(f"{source}: {words}; its times are damaged: record it again")
