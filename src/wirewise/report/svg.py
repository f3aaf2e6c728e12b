"""Building blocks of SVG charts: scales, ticks, lines, labels. Colours are CSS classes of page and picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

__all__ = [
    "Frame",
    "Scale",
    "axes",
    "circle",
    "document",
    "grid",
    "horizontal_line",
    "number",
    "polyline",
    "rect",
    "spread_labels",
    "text",
    "text_width",
    "thin",
    "ticks",
]


@dataclass(frozen=True)
class Scale:
    """Linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


@dataclass(frozen=True)
class Frame:
    """Plot area inside a chart, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """About `count` round tick values from `low` to `high`; integers only if `whole`."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    raw = max(raw, 1.0) if whole else raw
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in ((1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)) if power * m >= raw * 0.7)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def number(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """Line of escaped text."""
    names = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{number(x)}" y="{number(y)}"{names}{where}>{escape(content)}</text>'


def text_width(content: str, pixels: float = 12.0) -> float:
    """Upper estimate of the width of a text in a sans-serif font of that size, in pixels."""
    return 0.62 * pixels * len(content)


def rect(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """Box, with `tip` as its tooltip."""
    shown = f' data-tip="{escape(tip)}"' if tip else ""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" '
        f'class="{kind}"{shown}/>'
    )


def circle(x: float, y: float, radius: float, kind: str, tip: str = "") -> str:
    """Dot, with `tip` as its tooltip."""
    shown = f' data-tip="{escape(tip)}"' if tip else ""
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{radius:g}" class="{kind}"{shown}/>'


def horizontal_line(frame: Frame, y: float, kind: str) -> str:
    """Line from the left to the right of a frame."""
    return f'<path d="M{number(frame.left)} {number(y)}H{number(frame.right)}" class="{kind}"/>'


def polyline(dots: Sequence[tuple[float, float]], kind: str) -> str:
    """Line through the dots, broken at non-finite coordinates."""
    path, pen = [], "M"
    for x, y in dots:
        if math.isfinite(x) and math.isfinite(y):
            path.append(f"{pen}{number(x)} {number(y)}")
            pen = "L"
        else:
            pen = "M"
    return f'<path d="{"".join(path)}" class="{kind}"/>' if path else ""


def axes(
    frame: Frame, x: Scale, y: Scale, x_title: str, y_format: str = "{:g}", *, whole: bool = False
) -> str:
    """Horizontal grid lines with values at the left, values along the bottom, and the x-axis title.

    `whole` restricts the ticks of the x axis to integers.
    """
    # The margin below a positive quantity is room for labels, not for values.
    least = 0.0 if y.low < 0 <= y.low + 0.5 * (y.high - y.low) else y.low
    up = {y(value): y_format.format(value) for value in ticks(y.low, y.high) if value >= least}
    along = {x(value): f"{value:g}" for value in ticks(x.low, x.high, 6, whole=whole)}
    return grid(frame, along, up, x_title)


def grid(frame: Frame, along: Mapping[float, str], up: Mapping[float, str], x_title: str) -> str:
    """Axes with given tick labels.

    Args:
        frame: Area of the plot.
        along: Label at each position of the x axis, in pixels.
        up: Label at each position of the y axis, in pixels.
        x_title: Title of the x axis.
    """
    lines = [
        horizontal_line(frame, at, "grid") + text(frame.left - 8, at + 4, told, "tick", "end")
        for at, told in up.items()
    ]
    values = [text(at, frame.bottom + 18, told, "tick", "middle") for at, told in along.items()]
    title = text(frame.right, frame.bottom + 36, x_title, "tick", "end")
    return "".join([*lines, *values, horizontal_line(frame, frame.bottom, "axis"), title])


def spread_labels(heights: Sequence[float], bottom: float, min_distance: float = 14.0) -> list[float]:
    """Spread label positions so that labels do not overlap, keeping their order.

    Args:
        heights: Preferred positions, in pixels from the top.
        bottom: Largest allowed position, in pixels.
        min_distance: Minimum distance between two labels, in pixels.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for above, below in pairwise(order):
        placed[below] = max(placed[below], placed[above] + min_distance)
    placed[order[-1]] = min(placed[order[-1]], bottom)
    for below, above in pairwise(reversed(order)):
        placed[above] = min(placed[above], placed[below] - min_distance)
    return placed


def thin(length: int, maximum: int) -> list[int]:
    """Select `maximum` of the numbers 0 to length - 1, evenly spaced, with first and last kept."""
    if length <= maximum:
        return list(range(length))
    return sorted({round(i * (length - 1) / (maximum - 1)) for i in range(maximum)})


def document(width: float, height: float, label: str, body: str) -> str:
    """SVG element that scales with its container; `label` is for screen readers."""
    return (
        f'<svg viewBox="0 0 {number(width)} {number(height)}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
