"""Bars of groups of gradients: what each was predicted to take, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from wirewise.report import svg
from wirewise.report.figures import seconds
from wirewise.report.svg import Scale
from wirewise.results import GroupRecord

__all__ = ["MOST_GROUPS", "groups_chart", "groups_legend"]

MOST_GROUPS = 16
"""Of plans with more, so many are drawn, evenly spread."""
_PARTS = (("encode", "pack"), ("communicate", "wire"), ("decode", "unpack"))
_ROW = 46.0


def groups_legend() -> str:
    """Parts of a bar of `groups_chart`, as HTML."""
    items = "".join(f'<li><i class="chip p-{colour}"></i>{escape(name)}</li>' for name, colour in _PARTS)
    return f'<ul class="legend">{items}</ul>'


def groups_chart(groups: Sequence[GroupRecord], label: str, width: float = 1000) -> str:
    """Two stacked bars a group, the predicted above the measured one; empty where nothing was measured."""
    shown = [number for number in svg.thin(len(groups), MOST_GROUPS) if groups[number].measured_s is not None]
    longest = max((max(map(sum, _times(groups[number]))) for number in shown), default=0.0)
    if not longest:
        return ""
    names = {number: _name(number, groups[number]) for number in shown}
    left = 96 + max(svg.text_width(name, 12.5) for name in names.values())
    x = Scale(0.0, longest, left, width - 84)
    drawn = []
    for row, number in enumerate(shown):
        top = 4 + _ROW * row
        drawn.append(svg.text(0, top + 23, names[number], "label"))
        for line, (kind, times) in enumerate(
            zip(("predicted", "measured"), _times(groups[number]), strict=True)
        ):
            drawn.append(_bar(x, top + 19 * line, kind, times))
    return svg.document(width, 4 + _ROW * len(shown), label, "".join(drawn))


def _times(group: GroupRecord) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    assert group.measured_s is not None
    return group.predicted_s, group.measured_s


def _name(number: int, group: GroupRecord) -> str:
    way = group.scheme if group.codec == "none" else f"{group.codec}, {group.scheme}"
    count = group.last - group.first + 1
    return f"{number}: {way}, {count} tensor{'s' if count > 1 else ''}"


def _bar(x: Scale, top: float, kind: str, times: Sequence[float]) -> str:
    drawn, at = [svg.text(x.start - 8, top + 12.5, kind, "tick", "end")], x.start
    for (part, colour), value in zip(_PARTS, times, strict=True):
        wide = x(value) - x.start
        drawn.append(svg.rect(at, top, wide, 16, f"p-{colour} seg", f"{kind}, {part}: {seconds(value)}"))
        at += wide
    drawn.append(svg.text(at + 7, top + 12.5, seconds(sum(times)), "label"))
    return "".join(drawn)
