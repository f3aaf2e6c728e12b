"""Line charts of modes over wall-clock time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from wirewise.report import figures, shell, svg
from wirewise.report.svg import Frame, Scale
from wirewise_papers.adaqp import series
from wirewise_papers.adaqp.pairs import reference_name
from wirewise_papers.adaqp.records import RunResult
from wirewise_papers.adaqp.series import EpochPoint

__all__ = ["accuracy_chart", "colour", "legend", "loss_chart"]

_DOTS = 240
"""Most dots of a line: more than the pixels can tell apart only make the page larger."""
_COLOURS = 7


def colour(result: RunResult, name: str) -> str:
    """CSS class of a mode's colour: c0 for the reference, c1 and on for the others, then again."""
    reference = reference_name(result)
    if name == reference:
        return "c0"
    others = [mode for mode in result.modes if mode != reference]
    return f"c{others.index(name) % _COLOURS + 1}"


def loss_chart(result: RunResult, width: float = 540, height: float = 310) -> str:
    """Training loss by mode, the reference's final loss dashed, and when each mode came within 1 % of it."""
    lines = {name: series.losses(mode) for name, mode in result.modes.items()}
    frame = Frame(56, 14, width - 16, height - 48)
    scales = _scales(lines, frame, below=0.24)
    if scales is None:
        return ""
    x, y = scales
    parts = [svg.axes(frame, x, y, "wall-clock time of the mode, s")]
    goal = figures.finite(result.modes[reference_name(result)].final_loss)
    if goal is not None and y.low <= goal <= y.high:
        parts.append(svg.horizontal_line(frame, y(goal), "goal"))
        label = f"final loss of {reference_name(result)}: {figures.plain(goal)}"
        parts.append(svg.text(frame.left + 6, y(goal) + 15, label, "note"))
    parts += _curves(result, lines, x, y, "loss")
    parts += _crossings(result, lines, x, y, frame)
    parts += _losses_of_numbers(result, lines, x, y)
    return svg.document(width, height, "Training loss over wall-clock time by mode", "".join(parts))


def accuracy_chart(result: RunResult, width: float = 540, height: float = 310) -> str:
    """Validation accuracy by mode; empty where nothing was evaluated."""
    lines = {name: dots for name, mode in result.modes.items() if (dots := series.accuracies(mode))}
    frame = Frame(56, 14, width - 16, height - 48)
    total_s = (
        sum(record.train_s + record.eval_s for record in mode.epochs) for mode in result.modes.values()
    )
    scales = _scales(lines, frame, longest=max(total_s, default=0.0))
    if scales is None:
        return ""
    x, y = scales
    parts = [svg.axes(frame, x, y, "wall-clock time of the mode, s", "{:g} %")]
    parts += _curves(result, lines, x, y, "validation %", marks=True)
    return svg.document(width, height, "Validation accuracy over wall-clock time by mode", "".join(parts))


def _scales(
    lines: Mapping[str, list[EpochPoint]], frame: Frame, longest: float = 0.0, below: float = 0.06
) -> tuple[Scale, Scale] | None:
    dots = [
        d for line in lines.values() for d in line if math.isfinite(d.value) and math.isfinite(d.elapsed_s)
    ]
    if not dots:
        return None
    longest = max(longest, max(d.elapsed_s for d in dots))
    low, high = min(d.value for d in dots), max(d.value for d in dots)
    span = (high - low) or abs(high) or 1.0
    x = Scale(0.0, longest or 1.0, frame.left, frame.right)
    return x, Scale(low - below * span, high + 0.06 * span, frame.bottom, frame.top)


def _curves(
    result: RunResult,
    lines: Mapping[str, list[EpochPoint]],
    x: Scale,
    y: Scale,
    what: str,
    *,
    marks: bool = False,
) -> list[str]:
    """Lines, the reference first so that others lie on top, and the figures that the pointer shows."""
    parts = []
    for name in sorted(lines, key=lambda n: n != reference_name(result)):
        kept = [lines[name][i] for i in svg.thin(len(lines[name]), _DOTS)]
        kind = colour(result, name)
        parts.append(svg.polyline([(x(d.elapsed_s), y(d.value)) for d in kept], f"line {kind}"))
        shown = [d for d in kept if math.isfinite(d.value)]
        if marks and len(shown) <= 60:
            parts += [svg.circle(x(d.elapsed_s), y(d.value), 2.6, f"dot {kind}") for d in shown]
        data = ";".join(
            f"{svg.number(x(d.elapsed_s))},{svg.number(y(d.value))},{d.epoch},{d.elapsed_s:.4g},{d.value:.5g}"
            for d in shown
        )
        parts.append(f'<g data-points="{data}" data-name="{escape(name)}" data-what="{escape(what)}"/>')
    return parts


def _crossings(
    result: RunResult, lines: Mapping[str, list[EpochPoint]], x: Scale, y: Scale, frame: Frame
) -> list[str]:
    """A mark on each line that came within 1 % of the goal, with its time above the axis."""
    parts: list[str] = []
    reached = [(m.time_to_reference_loss_s, name) for name, m in result.modes.items()]
    placed: list[tuple[float, float]] = []
    for time, name in sorted((t, n) for t, n in reached if t is not None and math.isfinite(t)):
        near = min(
            (d for d in lines[name] if math.isfinite(d.value)),
            key=lambda d: abs(d.elapsed_s - time),
            default=None,
        )
        if near is None:
            continue
        at, kind = x(near.elapsed_s), colour(result, name)
        path = f"M{svg.number(at)} {svg.number(y(near.value))}V{svg.number(frame.bottom)}"
        parts.append(f'<path d="{path}" class="drop {kind}"/>')
        parts.append(svg.circle(at, y(near.value), 5, f"dot {kind} ring"))
        parts.append(_label(at, figures.seconds(time), kind, frame, placed))
    return parts


def _losses_of_numbers(
    result: RunResult, lines: Mapping[str, list[EpochPoint]], x: Scale, y: Scale
) -> list[str]:
    """Where the loss of a mode stopped being a number, said at the last dot that was one."""
    parts = []
    for name, line in lines.items():
        sound = [d for d in line if math.isfinite(d.value)]
        if sound and not math.isfinite(line[-1].value):
            at = sound[-1]
            parts.append(
                svg.text(
                    x(at.elapsed_s) + 6, y(at.value) - 4, f"{name}: NaN", f"label {colour(result, name)}"
                )
            )
    return parts


def _label(at: float, words: str, kind: str, frame: Frame, placed: list[tuple[float, float]]) -> str:
    """A time beside its mark's drop line, on a row above the axis where no earlier label lies."""
    wide = svg.text_width(words) + 8
    left = at - wide if at + wide > frame.right else at
    taken = {y for x, y in placed if abs(x - left) < wide}
    row = next(y for y in (frame.bottom - 6 - 14 * i for i in range(len(placed) + 1)) if y not in taken)
    placed.append((left, row))
    return svg.text(left + 4, row, words, f"label {kind}")


def legend(result: RunResult) -> str:
    """The modes with their colours, as HTML."""
    return shell.legend({name: colour(result, name) for name in result.modes})
