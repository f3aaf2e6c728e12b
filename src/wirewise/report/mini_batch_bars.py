"""Bars of mini-batch training: what a batch takes in each stage, mode by mode."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from wirewise.report import svg
from wirewise.report.figures import seconds
from wirewise.report.svg import Scale
from wirewise.results import MiniBatchRecord

__all__ = ["STAGES", "stages_chart", "stages_legend"]

STAGES = {
    "sample": ("central", "draw the neighbourhood of the seeds"),
    "ids": ("reduce", "tell owners which rows are needed"),
    "slice": ("pack", "encode the rows that others asked for"),
    "rows": ("wire", "wait until the rows of all machines have travelled"),
    "assemble": ("unpack", "decode, and copy own and cached rows"),
    "train": ("dense", "forward, backward, gradients over all machines, optimizer"),
}
"""Colour and meaning of each stage, in the order of a batch."""
_ROW = 40.0


def stages_legend() -> str:
    """The stages with colour and meaning, as HTML."""
    items = "".join(
        f'<li><i class="chip p-{colour}"></i>{escape(name)}: {escape(meaning)}</li>'
        for name, (colour, meaning) in STAGES.items()
    )
    return f'<ul class="legend">{items}</ul>'


def stages_chart(modes: Mapping[str, MiniBatchRecord], batches: int, width: float = 1000) -> str:
    """A stacked bar a mode, all stages of a batch one after the other; a mark where the next batch begins.

    Args:
        modes: Measured modes.
        batches: Of an epoch.
        width: Of the drawing.

    Returns:
        SVG; empty where nothing was timed.
    """
    each = {name: one.epoch_s / max(batches, 1) for name, one in modes.items()}
    longest = max((max(sum(one.stage_s.values()), each[name]) for name, one in modes.items()), default=0.0)
    if not longest:
        return ""
    left = 24 + max(svg.text_width(name, 12.5) for name in modes)
    x = Scale(0.0, longest, left, width - 150)
    drawn = []
    for row, (name, one) in enumerate(modes.items()):
        top = 4 + _ROW * row
        drawn.append(svg.text(left - 10, top + 17, name, "label", "end"))
        drawn += _bar(x, top, name, one)
        at = svg.number(x(each[name]))
        drawn.append(f'<path d="M{at} {svg.number(top - 4)}v32" class="crit"/>')
        end = x(max(sum(one.stage_s.values()), each[name]))
        drawn.append(svg.text(end + 8, top + 17, f"{seconds(each[name])} a batch", "label"))
    label = "Time of each stage of a batch by mode"
    return svg.document(width, 4 + _ROW * len(modes), label, "".join(drawn))


def _bar(x: Scale, top: float, name: str, one: MiniBatchRecord) -> list[str]:
    drawn, at = [], x.start
    for stage, (colour, _) in STAGES.items():
        value = one.stage_s.get(stage, 0.0)
        wide = x(value) - x.start
        drawn.append(svg.rect(at, top, wide, 24, f"p-{colour} seg", f"{name}, {stage}: {seconds(value)}"))
        for words in (f"{stage} {seconds(value)}", stage):
            if svg.text_width(words, 11.5) + 8 < wide:
                drawn.append(svg.text(at + 5, top + 16, words, f"inside on-{colour}"))
                break
        at += wide
    return drawn
