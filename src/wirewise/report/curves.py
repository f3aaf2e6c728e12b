"""Line charts of a quantity over one that doubles from point to point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from wirewise.report import svg
from wirewise.report.figures import seconds
from wirewise.report.svg import Frame, Scale

__all__ = ["Curve", "curves_chart"]

_WIDTH, _HEIGHT = 900.0, 300.0


class Curve(NamedTuple):
    """Seconds at each point of the x axis."""

    label: str
    seconds: Sequence[float | None]
    """Seconds at each point. None if unknown, which breaks the line."""


def curves_chart(curves: Sequence[Curve], labels: Sequence[str], label: str, x_title: str) -> str:
    """Draw curves as SVG, with the y axis from zero; empty if no value is known.

    Args:
        curves: Curves, each with a value per point.
        labels: Labels of the points, evenly spaced.
        label: Text for screen readers.
        x_title: Title of the x axis.
    """
    known = [value for curve in curves for value in curve.seconds if value is not None]
    if not known or len(labels) < 2:
        return ""
    longest = max(svg.text_width(curve.label) for curve in curves)
    frame = Frame(70, 14, _WIDTH - 20 - longest, _HEIGHT - 46)
    x = Scale(0, len(labels) - 1, frame.left, frame.right)
    y = Scale(0.0, 1.05 * max(known), frame.bottom, frame.top)
    along = {x(number): place for number, place in enumerate(labels)}
    up = {y(value): seconds(value) if value else "0" for value in svg.ticks(0.0, max(known))}
    parts = [svg.grid(frame, along, up, x_title)]
    ends = [next((value for value in reversed(curve.seconds) if value is not None), 0.0) for curve in curves]
    heights = svg.spread_labels([y(value) for value in ends], frame.bottom)
    for number, (curve, height) in enumerate(zip(curves, heights, strict=True)):
        colour = f"c{number % 7 + 1}"
        values = [math.nan if value is None else value for value in curve.seconds]
        dots = [(x(place), y(value)) for place, value in enumerate(values)]
        parts.append(svg.polyline(dots, f"line {colour}"))
        parts += [
            svg.circle(at, high, 3, f"dot {colour}", f"{curve.label}, {place}: {seconds(value)}")
            for (at, high), place, value in zip(dots, labels, values, strict=True)
            if math.isfinite(value)
        ]
        parts.append(svg.text(frame.right + 10, height + 4, curve.label, f"label {colour}"))
    return svg.document(_WIDTH, _HEIGHT, label, "".join(parts))
