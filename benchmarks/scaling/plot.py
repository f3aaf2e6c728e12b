"""Efficiency by number of ranks, a chart for each family and scaling: marks are measured, lines predicted."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from math import log2
from typing import NamedTuple

from families import MOST, Point

from wirewise.report import svg
from wirewise.report.svg import Frame, Scale

WIDTH, HEIGHT, COLUMNS, TOP = 300, 220, 3, 60


class Look(NamedTuple):
    """How a scaling is drawn."""

    colour: str
    mark: str
    radius: float
    dashes: str

    def line(self, dots: Sequence[tuple[float, float]]) -> str:
        """What was predicted."""
        return f'<g stroke-dasharray="{self.dashes}">{svg.polyline(dots, f"line {self.colour}")}</g>'

    def dot(self, x: float, y: float, tip: str = "") -> str:
        """What was measured."""
        return svg.circle(x, y, self.radius, f"{self.mark} {self.colour}", tip)


LOOKS = {"weak": Look("c2", "ring", 6.0, "none"), "strong": Look("c1", "dot", 3.5, "6 6")}
"""Look of each scaling, in the order of drawing, so that both show where they are equal."""


def picture(points: Sequence[Point]) -> str:
    """The picture as text."""
    names = list(dict.fromkeys(one.what for one in points))
    rows = -(-len(names) // COLUMNS)
    # The legend needs the width of two charts.
    wide, high = WIDTH * min(COLUMNS, max(len(names), 2)), TOP + HEIGHT * rows
    style = (resources.files("wirewise.report") / "colours.css").read_text("utf-8")
    label = "Efficiency by number of ranks"
    parts = [
        f"<title>{label}</title><style>{style}</style>",
        f'<rect width="{wide}" height="{high}" style="fill:var(--paper)"/>',
        svg.text(16, 24, "Efficiency by number of ranks", "title"),
        svg.text(16, 46, "marks: measured, lines: predicted"),
    ]
    for x, scaling in ((250, "strong"), (410, "weak")):
        look = LOOKS[scaling]
        parts += [look.line([(x, 42), (x + 36, 42)]), look.dot(x + 18, 42)]
        parts.append(svg.text(x + 44, 46, f"{scaling} scaling", f"label {look.colour}"))
    for number, name in enumerate(names):
        row, column = divmod(number, COLUMNS)
        chosen = [one for one in points if one.what == name]
        parts.append(chart(name, chosen, WIDTH * column, TOP + HEIGHT * row))
    drawn = svg.document(wide, high, label, "".join(parts))
    return drawn.replace("<svg ", f'<svg width="{wide}" height="{high}" ', 1) + "\n"


def chart(name: str, points: Sequence[Point], left: float, top: float) -> str:
    frame = Frame(left + 44, top + 30, left + WIDTH - 16, top + HEIGHT - 48)
    ranks = sorted({one.ranks for one in points})
    x = Scale(log2(ranks[0]), max(log2(ranks[-1]), log2(ranks[0]) + 1), frame.left + 8, frame.right - 8)
    y = Scale(0.0, 1.0, frame.bottom, frame.top)
    up = {y(value): f"{value:g}" for value in (0, 0.25, 0.5, 0.75, 1)}
    parts = [svg.text(left + 44, top + 18, name, "label")]
    parts.append(svg.grid(frame, {x(log2(one)): str(one) for one in ranks}, up, "ranks"))
    by_scaling = {name: [one for one in points if name == one.scaling or one.ranks == MOST] for name in LOOKS}
    for scaling, own in by_scaling.items():
        parts.append(
            LOOKS[scaling].line([(x(log2(one.ranks)), y(one.ideal_s / one.predicted_s)) for one in own])
        )
    for scaling, own in by_scaling.items():
        for one in own:
            efficiency = one.ideal_s / one.measured_s
            tip = f"{one.ranks} ranks, {scaling}: {efficiency:.2f}"
            parts.append(LOOKS[scaling].dot(x(log2(one.ranks)), y(efficiency), tip))
    return "".join(parts)
