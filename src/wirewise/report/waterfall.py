"""One step of all ranks as it was recorded: compute, communication and waiting, the critical path outlined."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import NamedTuple

from wirewise.report import figures, svg
from wirewise.report.svg import Scale
from wirewise.trace.match import match, transfer_starts
from wirewise.trace.records import Op, Trace

__all__ = ["KIND_COLOURS", "shown_ranks", "waterfall", "waterfall_legend"]

KIND_COLOURS = {
    "forward": "central",
    "backward": "marginal",
    "optimizer": "dense",
    "encode": "pack",
    "decode": "unpack",
    "other": "other",
    "communication": "wire",
    "wait": "reduce",
    "data": "plan",
}
"""Colour of each kind of op; the names are those of the colours of phases."""

_LANES = {"compute": 16.0, "communication": 16.0, "wait": 8.0}
_LANE_OF = {"communication": "communication", "wait": "wait", "data": "wait"}
_MOST_RANKS = 16
_NARROW, _NEAR = 1.2, 0.5
"""In pixels: narrower boxes that lie nearer to each other are drawn as one."""


class _Box(NamedTuple):
    """Ops of one kind, drawn as one box."""

    start_s: float
    end_s: float
    kind: str
    critical: bool
    name: str
    ops: int = 1

    def tip(self, rank: int, zero: float) -> str:
        what = self.name if self.ops == 1 else f"{self.ops} short ops from {self.name}"
        path = ", on the critical path" if self.critical else ""
        at = f"{figures.seconds(self.end_s - self.start_s)} at {figures.seconds(self.start_s - zero)}"
        return f"rank {rank}, {self.kind}: {what}, {at}{path}"


def shown_ranks(trace: Trace, also: int | None) -> list[int]:
    """16 ranks at most, evenly spaced, `also` among them."""
    chosen = set(svg.thin(trace.world_size, _MOST_RANKS))
    return sorted(chosen | ({also} if also is not None else set()))


def waterfall(
    trace: Trace,
    step: int,
    critical: Collection[tuple[int, int]],
    ranks: list[int],
    width: float = 1000,
) -> str:
    """The step as SVG; empty where nothing of it was recorded.

    Args:
        trace: On aligned clocks.
        step: Its number.
        critical: Ops on the critical path, as (rank, place in its list).
        ranks: Which to show.
        width: Of the picture, in its own pixels.
    """
    matches = match(trace)
    starts = {
        id(op): start
        for one, start in zip(matches, transfer_starts(matches), strict=True)
        for op in one.ops
        if op.step == step
    }
    rows = {rank: _boxes(trace.ranks[rank].ops, step, rank, critical, starts) for rank in ranks}
    boxes = [box for lanes in rows.values() for lane in lanes.values() for box in lane]
    if not boxes:
        return ""
    zero = min(box.start_s for box in boxes)
    left = 20 + max(svg.text_width(f"rank {rank}", 12.5) for rank in ranks)
    x = Scale(zero, max(box.end_s for box in boxes), left, width - 12)
    high = sum(_LANES.values()) + 12
    bottom = 6 + high * len(ranks)
    parts = [_grid(x, zero, bottom)]
    for row, (rank, lanes) in enumerate(rows.items()):
        top = 6 + high * row
        parts.append(svg.text(left - 10, top + 24, f"rank {rank}", "label", "end"))
        for lane, size in _LANES.items():
            parts.append(svg.rect(left, top, x.end - left, size, "lane"))
            parts += _lane(lanes[lane], x, top, size, rank, zero)
            top += size + 1
    label = f"Step {step} of {len(ranks)} ranks as recorded"
    return svg.document(width, bottom + 28, label, "".join(parts))


def waterfall_legend(trace: Trace, step: int) -> str:
    """Kinds of ops that occur, as HTML."""
    found = {op.kind for rank in trace.ranks for op in rank.ops if op.step == step}
    items = "".join(
        f'<li><i class="chip p-{colour}"></i>{escape(kind)}</li>'
        for kind, colour in KIND_COLOURS.items()
        if kind in found
    )
    return f'<ul class="legend">{items}<li>outlined: on the critical path</li></ul>'


def _boxes(
    ops: list[Op],
    step: int,
    rank: int,
    critical: Collection[tuple[int, int]],
    starts: dict[int, float],
) -> dict[str, list[_Box]]:
    lanes: dict[str, list[_Box]] = {lane: [] for lane in _LANES}
    for place, op in enumerate(ops):
        if op.step == step and op.kind != "step":
            start = min(max(op.start_s, starts.get(id(op), op.start_s)), op.end_s)
            box = _Box(start, op.end_s, op.kind, (rank, place) in critical, op.name)
            lanes[_LANE_OF.get(op.kind, "compute")].append(box)
    return {lane: sorted(boxes) for lane, boxes in lanes.items()}


def _lane(boxes: list[_Box], x: Scale, top: float, size: float, rank: int, zero: float) -> list[str]:
    """Boxes that overlap are drawn below each other."""
    rows: list[list[_Box]] = []
    for box in boxes:
        row = next((row for row in rows if row[-1].end_s <= box.start_s), None)
        if row is None:
            rows.append([box])
        elif _joins(row[-1], box, x):
            row[-1] = row[-1]._replace(end_s=box.end_s, ops=row[-1].ops + 1)
        else:
            row.append(box)
    high = size / max(len(rows), 1)
    parts = []
    # What is outlined comes last, so that no neighbour covers its outline.
    drawn = [(box, number) for number, row in enumerate(rows) for box in row]
    for box, number in sorted(drawn, key=lambda one: one[0].critical):
        parts.append(_drawn(box, x, top + high * number, high, rank, zero))
    return parts


def _joins(one: _Box, other: _Box, x: Scale) -> bool:
    alike = (one.kind, one.critical) == (other.kind, other.critical)
    short = x(other.end_s) - x(other.start_s) < _NARROW
    return alike and short and x(other.start_s) - x(one.end_s) < _NEAR


def _drawn(box: _Box, x: Scale, top: float, high: float, rank: int, zero: float) -> str:
    colour = KIND_COLOURS.get(box.kind, "other")
    left, wide = x(box.start_s), max(x(box.end_s) - x(box.start_s), 0.4)
    outline = " crit" if box.critical else ""
    shape = svg.rect(left, top, wide, high, f"p-{colour} seg{outline}", box.tip(rank, zero))
    if box.ops == 1 and high > 12 and svg.text_width(box.name, 11.5) + 8 < wide:
        shape += svg.text(left + 5, top + high / 2 + 4, box.name, f"inside on-{colour}")
    return shape


def _grid(x: Scale, zero: float, bottom: float) -> str:
    parts = []
    for value in svg.ticks(0.0, 1e3 * (x.high - zero), 8):
        at = svg.number(x(zero + 1e-3 * value))
        parts.append(f'<path d="M{at} 4V{svg.number(bottom)}" class="grid"/>')
        parts.append(svg.text(float(at), bottom + 14, f"{value:g} ms", "tick", "middle"))
    return "".join(parts)
