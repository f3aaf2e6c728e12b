"""One recorded step of all ranks: compute, communication and waits, with the critical path outlined."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from wirewise.report import figures, shell, svg
from wirewise.report.svg import Scale
from wirewise.trace.match import match, transfer_starts
from wirewise.trace.records import Op, Trace
from wirewise.trace.segments import pieces

__all__ = [
    "KIND_COLOURS",
    "Box",
    "lanes_chart",
    "shown_ranks",
    "stack_boxes",
    "waterfall",
    "waterfall_legend",
]

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
_MOST_RANKS, _WIDTH = 16, 1000.0
_NARROW, _NEAR, _GROUP = 1.2, 0.5, 3.0
"""Pixels: narrower boxes that lie nearer to each other are drawn as one, until it has the last width."""


class Box(NamedTuple):
    """Op, part of an op, or several merged short ops."""

    start_s: float
    end_s: float
    kind: str
    critical: bool
    name: str
    ops: int = 1

    def tip(self, row: str, zero: float) -> str:
        what = self.name if self.ops == 1 else f"{self.ops} short pieces from {self.name} on"
        path = ", on the critical path" if self.critical else ""
        at = f"{figures.seconds(self.end_s - self.start_s)} at {figures.seconds(self.start_s - zero)}"
        return f"{row}, {self.kind}: {what}, {at}{path}"


def shown_ranks(trace: Trace, required: int | None) -> list[int]:
    """Select at most 16 ranks, evenly spaced, including `required`."""
    chosen = set(svg.thin(trace.world_size, _MOST_RANKS))
    return sorted(chosen | ({required} if required is not None else set()))


def waterfall(trace: Trace, step: int, critical: Collection[tuple[int, int]], ranks: list[int]) -> str:
    """Draw the step as SVG; empty if nothing of it was recorded.

    Args:
        trace: Trace on aligned clocks.
        step: Index of the step.
        critical: Ops on the critical path, as (rank, index in its list).
        ranks: Ranks to show.
    """
    matches = match(trace)
    starts = {
        id(op): start
        for one, start in zip(matches, transfer_starts(matches), strict=True)
        for op in one.ops
        if op.step == step
    }
    rows = {f"rank {rank}": _boxes(trace.ranks[rank].ops, step, rank, critical, starts) for rank in ranks}
    return lanes_chart(rows, _LANES, KIND_COLOURS, f"Step {step} of {len(ranks)} ranks as recorded")


def lanes_chart(
    rows: Mapping[str, Mapping[str, list[Box]]],
    lanes: Mapping[str, float],
    colours: Mapping[str, str],
    label: str,
) -> str:
    """Draw rows of boxes over time, one lane below another, as SVG; empty without boxes.

    Args:
        rows: Boxes of each lane, ordered by start, by row name.
        lanes: Height of each lane.
        colours: Page phase whose colour each kind of box has.
        label: Text for screen readers.
    """
    boxes = [box for row in rows.values() for lane in row.values() for box in lane]
    if not boxes:
        return ""
    zero = min(box.start_s for box in boxes)
    left = 20 + max(svg.text_width(name, 12.5) for name in rows)
    x = Scale(zero, max(box.end_s for box in boxes), left, _WIDTH - 12)
    high = sum(lanes.values()) + 12
    bottom = 6 + high * len(rows)
    parts = [_grid(x, bottom)]
    for number, (name, row) in enumerate(rows.items()):
        top = 6 + high * number
        parts.append(svg.text(left - 10, top + high / 2 - 2, name, "label", "end"))
        for lane, size in lanes.items():
            parts.append(svg.rect(left, top, x.end - left, size, "lane"))
            parts += _lane(row[lane], x, top, size, name, colours)
            top += size + 1
    return svg.document(_WIDTH, bottom + 28, label, "".join(parts))


def waterfall_legend(trace: Trace, step: int) -> str:
    """Legend of the op kinds in a step, as HTML."""
    found = {op.kind for rank in trace.ranks for op in rank.ops if op.step == step}
    colours = {kind: f"p-{colour}" for kind, colour in KIND_COLOURS.items() if kind in found}
    return shell.legend(colours, "outlined: on the critical path")


def _boxes(
    ops: list[Op], step: int, rank: int, critical: Collection[tuple[int, int]], starts: dict[int, float]
) -> dict[str, list[Box]]:
    """Boxes of each lane: ops without the ops inside them, communications from `starts` on."""
    lanes: dict[str, list[Box]] = {lane: [] for lane in _LANES}
    threads: dict[str, list[Op]] = {}
    outlined = {id(ops[place]) for own, place in critical if own == rank}

    def add(op: Op, start: float, end: float) -> None:
        box = Box(start, end, op.kind, id(op) in outlined, op.name)
        lanes[_LANE_OF.get(op.kind, "compute")].append(box)

    for op in ops:
        if op.step != step or op.kind == "step":
            continue
        if op.kind == "communication":
            add(op, min(max(op.start_s, starts.get(id(op), op.start_s)), op.end_s), op.end_s)
        else:
            threads.setdefault(op.thread, []).append(op)
    for own in threads.values():
        for piece in pieces(own):
            if piece.end_s > piece.start_s:
                add(piece.op, piece.start_s, piece.end_s)
    return {lane: sorted(boxes) for lane, boxes in lanes.items()}


def _lane(
    boxes: list[Box], x: Scale, top: float, size: float, name: str, colours: Mapping[str, str]
) -> list[str]:
    rows = stack_boxes(boxes)
    high = size / max(len(rows), 1)
    parts = []
    # What is outlined comes last, so that no neighbour covers its outline.
    drawn = [(box, number) for number, row in enumerate(rows) for box in _joined(row, x)]
    for box, number in sorted(drawn, key=lambda one: one[0].critical):
        parts.append(_drawn(box, x, top + high * number, high, box.tip(name, x.low), colours))
    return parts


def stack_boxes(boxes: Iterable[Box]) -> list[list[Box]]:
    """Stack boxes in rows so that overlapping ones are below each other, ordered by start."""
    rows: list[list[Box]] = []
    for box in boxes:
        row = next((row for row in rows if row[-1].end_s <= box.start_s), None)
        if row is None:
            rows.append([box])
        else:
            row.append(box)
    return rows


def _joined(row: list[Box], x: Scale) -> list[Box]:
    """Boxes too narrow to be told apart as one, which has the kind that takes most of its time."""
    found: list[Box] = []
    group: list[Box] = []
    for box in row:
        narrow = x(box.end_s) - x(box.start_s) < _NARROW
        far = group and x(box.start_s) - x(group[-1].end_s) > _NEAR
        full = group and x(group[-1].end_s) - x(group[0].start_s) > _GROUP
        if group and (far or full or not narrow):
            found.append(_one(group))
            group = []
        (group if narrow else found).append(box)
    return [*found, _one(group)] if group else found


def _one(group: list[Box]) -> Box:
    taken: dict[tuple[str, bool], float] = {}
    for box in group:
        key = (box.kind, box.critical)
        taken[key] = taken.get(key, 0.0) + box.end_s - box.start_s
    kind, critical = max(taken, key=taken.__getitem__)
    return Box(group[0].start_s, group[-1].end_s, kind, critical, group[0].name, len(group))


def _drawn(box: Box, x: Scale, top: float, high: float, tip: str, colours: Mapping[str, str]) -> str:
    colour = colours.get(box.kind, "other")
    left, wide = x(box.start_s), max(x(box.end_s) - x(box.start_s), 0.4)
    # The outline of a narrow box would be all that is seen of it.
    outline = " crit" if box.critical and wide > 2 * _NARROW else ""
    shape = svg.rect(left, top, wide, high, f"p-{colour} seg{outline}", tip)
    if box.ops == 1 and high > 12 and svg.text_width(box.name, 11.5) + 8 < wide:
        shape += svg.text(left + 5, top + high / 2 + 4, box.name, f"inside on-{colour}")
    return shape


def _grid(x: Scale, bottom: float) -> str:
    parts = []
    for value in svg.ticks(0.0, 1e3 * (x.high - x.low), 8):
        at = svg.number(x(x.low + 1e-3 * value))
        parts.append(f'<path d="M{at} 4V{svg.number(bottom)}" class="grid"/>')
        parts.append(svg.text(float(at), bottom + 14, f"{value:g} ms", "tick", "middle"))
    return "".join(parts)
