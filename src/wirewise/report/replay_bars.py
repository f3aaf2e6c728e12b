"""Bar charts of a replayed trace: where each rank's step goes, and steps by several predictions."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from wirewise.report import svg
from wirewise.report.figures import seconds
from wirewise.report.svg import Scale
from wirewise.sim.breakdown import Breakdown

__all__ = ["Bar", "bars_chart", "parts_chart", "parts_legend"]

_PARTS = (
    ("compute alone", "central"),
    ("communication beside compute", "marginal"),
    ("exposed communication", "wire"),
    ("waiting", "other"),
)


class Bar(NamedTuple):
    """One bar."""

    label: str
    seconds: float
    remark: str
    colour: str
    """CSS class."""


def parts_chart(ranks: dict[int, Breakdown], width: float = 1000) -> str:
    """One stacked bar a rank."""
    longest = max((sum(_seconds(found)) for found in ranks.values()), default=0.0)
    if not longest:
        return ""
    left, step = 74.0, 24.0
    x = Scale(0.0, longest, left, width - 80)
    drawn = []
    for row, (rank, found) in enumerate(ranks.items()):
        top, at, values = 4 + step * row, left, _seconds(found)
        drawn.append(svg.text(left - 10, top + 14, f"rank {rank}", "label", "end"))
        for (name, colour), value in zip(_PARTS, values, strict=True):
            wide = x(value) - left
            drawn.append(
                svg.rect(at, top, wide, 19, f"p-{colour} seg", f"rank {rank}, {name}: {seconds(value)}")
            )
            if svg.text_width(seconds(value), 11.5) + 8 < wide:
                drawn.append(svg.text(at + 5, top + 13.5, seconds(value), f"inside on-{colour}"))
            at += wide
        drawn.append(svg.text(at + 8, top + 14, seconds(sum(values)), "label"))
    label = "Where the step of each rank goes"
    return svg.document(width, 6 + step * len(ranks), label, "".join(drawn))


def parts_legend() -> str:
    """Parts of a bar of `parts_chart`, as HTML."""
    items = "".join(f'<li><i class="chip p-{colour}"></i>{escape(name)}</li>' for name, colour in _PARTS)
    return f'<ul class="legend">{items}</ul>'


def bars_chart(rows: list[Bar], label: str, goal_s: float, width: float = 1000) -> str:
    """One bar a row; a dashed line marks `goal_s`."""
    longest = max([goal_s, *(row.seconds for row in rows)])
    if not rows or not longest > 0:
        return ""
    left = 24 + max(svg.text_width(row.label, 12.5) for row in rows)
    aside = 30 + max(svg.text_width(_words(row), 12.5) for row in rows)
    x = Scale(0.0, longest, left, width - aside)
    drawn = []
    for number, row in enumerate(rows):
        top = 4 + 26.0 * number
        drawn.append(svg.text(left - 10, top + 14, row.label, "tick", "end"))
        tip = f"{row.label}: {_words(row)}"
        drawn.append(svg.rect(left, top, x(row.seconds) - left, 19, f"bar {row.colour}", tip))
        drawn.append(svg.text(x(row.seconds) + 8, top + 14, _words(row), "label"))
    high = 6 + 26.0 * len(rows)
    at = svg.number(x(goal_s))
    drawn.insert(0, f'<path d="M{at} 0V{svg.number(high)}" class="goal"/>')
    return svg.document(width, high, label, "".join(drawn))


def _words(row: Bar) -> str:
    return f"{seconds(row.seconds)}{f' ({row.remark})' if row.remark else ''}"


def _seconds(found: Breakdown) -> tuple[float, ...]:
    both = found.overlapped_communication_s
    return max(found.compute_s - both, 0.0), both, found.exposed_communication_s, found.wait_s
