"""Efficiency by number of ranks, a chart for each family and scaling: dots are measured, lines predicted."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from math import log2

from families import MOST, Point

from wirewise.report import svg
from wirewise.report.svg import Frame, Scale

WIDTH, HEIGHT, COLUMNS, TOP = 300, 230, 3, 56


def picture(points: Sequence[Point]) -> str:
    """The picture as text."""
    names = list(dict.fromkeys(one.what for one in points))
    rows = -(-len(names) // COLUMNS)
    wide, high = WIDTH * min(COLUMNS, len(names)), TOP + HEIGHT * rows
    style = (resources.files("wirewise.report") / "colours.css").read_text("utf-8")
    label = "Efficiency by number of ranks"
    parts = [
        f"<title>{label}</title><style>{style}</style>",
        f'<rect width="{wide}" height="{high}" style="fill:var(--paper)"/>',
        svg.text(16, 24, "Efficiency by ranks", "title"),
        svg.text(16, 44, "dots: measured, lines: predicted"),
        svg.text(220, 44, "strong scaling", "label c1"),
        svg.text(340, 44, "weak scaling", "label c2"),
    ]
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
    for kind, scaling in (("c1", "strong"), ("c2", "weak")):
        own = [one for one in points if scaling == one.scaling or one.ranks == MOST]
        line = [(x(log2(one.ranks)), y(one.ideal_s / one.predicted_s)) for one in own]
        parts.append(svg.polyline(line, f"line {kind}"))
        for one in own:
            tip = f"{one.ranks} ranks, {scaling}: {one.ideal_s / one.measured_s:.2f}"
            parts.append(
                svg.circle(x(log2(one.ranks)), y(one.ideal_s / one.measured_s), 4.5, f"ring {kind}", tip)
            )
    return "".join(parts)
