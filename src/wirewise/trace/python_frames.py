"""Python activity between operators, from the function events of torch.profiler (`with_stack=True`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from wirewise.trace.profiles import ProfileEvent

__all__ = ["FRAME", "ScriptSpan", "script_spans"]

FRAME = "python_function"
"""Category of such events."""
_LEAST_US = 20.0
"""Shorter gaps are what it takes to call the next operator, and there are as many of them as operators."""


class ScriptSpan(NamedTuple):
    """Span of a thread in which only Python runs, no operator."""

    name: str
    """Innermost function that ran during the whole span."""
    start: float
    """Start in microseconds."""
    end: float


def script_spans(frames: Sequence[ProfileEvent], work: Iterable[tuple[float, float]]) -> list[ScriptSpan]:
    """Times of one thread within functions but outside operators.

    Args:
        frames: Functions of the thread, sorted by their starts, longer ones first.
        work: Start and end of its operators, disjoint and sorted, in microseconds.
    """
    found, stack, place = list[ScriptSpan](), list[ProfileEvent](), 0
    for start, end in _without(_covered(frames), work):
        while place < len(frames) and frames[place].ts <= 0.5 * (start + end):
            while stack and stack[-1].end <= frames[place].ts:
                stack.pop()
            stack.append(frames[place])
            place += 1
        found.append(ScriptSpan(_innermost(stack, start, end), start, end))
    return found


def _covered(frames: Iterable[ProfileEvent]) -> list[tuple[float, float]]:
    """Times in which any function runs; holes that are shorter than what counts are filled."""
    found = list[tuple[float, float]]()
    for e in frames:
        if found and e.ts - found[-1][1] < _LEAST_US:
            found[-1] = found[-1][0], max(found[-1][1], e.end)
        else:
            found.append((e.ts, e.end))
    return found


def _without(
    whole: Iterable[tuple[float, float]], work: Iterable[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Parts of intervals outside of others, all sorted, but for those that are too short to count."""
    others = deque(work)
    for start, end in whole:
        while others and others[0][0] < end:
            low, high = others[0]
            if low - start >= _LEAST_US:
                yield start, low
            start = max(start, high)
            if high > end:
                break
            others.popleft()
        if end - start >= _LEAST_US:
            yield start, end


def _innermost(stack: Sequence[ProfileEvent], start: float, end: float) -> str:
    """Function that runs in most of a gap, the innermost one."""
    whole = [e for e in stack if min(e.end, end) - max(e.ts, start) >= 0.5 * (end - start)]
    return (whole or stack)[-1].name
