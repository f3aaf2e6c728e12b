"""Bar charts: one bar per row, or stacked parts of a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wirewise.report import svg
from wirewise.report.figures import seconds
from wirewise.report.svg import Scale

__all__ = ["Bar", "Stack", "bars_chart", "stacks_chart"]

_WIDTH, _HIGH = 1000.0, 19.0
"""Pixels of a chart from left to right, and of a bar from top to bottom."""


class Bar(NamedTuple):
    """Bar of a chart."""

    label: str
    length: float
    """Value in the chart's unit; only positive values have a bar."""
    words: str
    """Text at the bar's end."""
    colour: str = "c1"
    """CSS class of the bar."""


class Stack(NamedTuple):
    """Parts of a whole, stacked."""

    label: str
    parts_s: Mapping[str, float]
    """Seconds of each part by its name."""
    words: str
    """Text at the end of the row."""
    mark_s: float | None = None
    """Position of a marker, in seconds."""
    colour: str = ""
    """CSS class of the label."""


def bars_chart(bars: Sequence[Bar], label: str, goal: float = 0.0) -> str:
    """Draw one bar per row as SVG; empty if no bar has a length.

    Args:
        bars: Bars from top to bottom.
        label: Text for screen readers.
        goal: Value marked by a dashed line; 0 for no line.
    """
    lengths = [bar.length if math.isfinite(bar.length) else 0.0 for bar in bars]
    longest = max([goal, *lengths], default=0.0)
    if not bars or not longest > 0:
        return ""
    x = _scale(longest, [bar.label for bar in bars], [bar.words for bar in bars])
    high, shapes, texts = 6 + 26.0 * len(bars), [], []
    for number, (bar, length) in enumerate(zip(bars, lengths, strict=True)):
        top, end = 4 + 26.0 * number, x(max(length, 0.0))
        shapes.append(
            svg.rect(x.start, top, end - x.start, _HIGH, f"bar {bar.colour}", f"{bar.label}: {bar.words}")
        )
        texts.append(svg.text(x.start - 10, top + 14, bar.label, "tick", "end"))
        crossed = end < x(goal) < end + 8 + svg.text_width(bar.words)
        texts.append(svg.text((x(goal) if crossed else end) + 8, top + 14, bar.words, "label"))
    line = f'<path d="M{svg.number(x(goal))} 0V{svg.number(high)}" class="goal"/>' if goal > 0 else ""
    return svg.document(_WIDTH, high, label, "".join([*shapes, line, *texts]))


def stacks_chart(rows: Sequence[Stack], colours: Mapping[str, str], label: str, *, block: int = 1) -> str:
    """Draw one stacked bar per row as SVG; empty if nothing took time.

    Args:
        rows: Bars from top to bottom.
        colours: Page phase whose colour a part has, by the part's name, in drawing order.
        label: Text for screen readers.
        block: Number of rows grouped closely together.
    """
    longest = max((max(sum(row.parts_s.values()), row.mark_s or 0.0) for row in rows), default=0.0)
    if not longest > 0:
        return ""
    x = _scale(longest, [row.label for row in rows], [row.words for row in rows])
    drawn, top = [], 4.0
    for number, row in enumerate(rows):
        drawn.append(svg.text(x.start - 10, top + 14, row.label, f"label {row.colour}".rstrip(), "end"))
        drawn += _parts(row, colours, x, top)
        end = max(sum(row.parts_s.values()), row.mark_s or 0.0)
        if row.mark_s is not None:
            drawn.append(f'<path d="M{svg.number(x(row.mark_s))} {svg.number(top - 4)}v27" class="crit"/>')
        drawn.append(svg.text(x(end) + 8, top + 14, row.words, "label"))
        top += _HIGH + (10 if (number + 1) % block == 0 else 1)
    return svg.document(_WIDTH, top, label, "".join(drawn))


def _scale(longest: float, labels: Sequence[str], words: Sequence[str]) -> Scale:
    """Room for labels on the left and for words on the right."""
    left, right = (max(svg.text_width(text, 12.5) for text in texts) for texts in (labels, words))
    return Scale(0.0, longest, left + 24, _WIDTH - right - 20)


def _parts(row: Stack, colours: Mapping[str, str], x: Scale, top: float) -> list[str]:
    drawn, at, whole = [], x.start, sum(row.parts_s.values()) or 1.0
    for part, colour in colours.items():
        value = row.parts_s.get(part, 0.0)
        wide = x(value) - x.start
        tip = f"{row.label}, {part}: {seconds(value)} ({100 * value / whole:.1f} %)"
        drawn.append(svg.rect(at, top, wide, _HIGH, f"p-{colour} seg", tip))
        for words in (f"{part} {seconds(value)}", seconds(value), part):
            if svg.text_width(words, 11.5) + 8 < wide:
                drawn.append(svg.text(at + 5, top + 13.5, words, f"inside on-{colour}"))
                break
        at += wide
    return drawn
