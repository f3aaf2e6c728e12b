"""One SVG of a run for a README: loss over time at the left, time per epoch at the right."""

from __future__ import annotations

import os
from html import escape
from importlib import resources

from wirewise.files import atomic_file
from wirewise.report import figures, lines, svg
from wirewise.report.figures import Comparison
from wirewise.report.summary import network_words, summary_sentence
from wirewise.results import RunResult

__all__ = ["picture_svg", "write_picture"]

_WIDTH, _HEIGHT = 900.0, 380.0
_MODES = 6
"""Most modes that the bars have room for; the first ones are drawn."""


def write_picture(result: RunResult, path: str | os.PathLike[str]) -> None:
    """Write the picture; an older file at `path` stays whole until the new one is complete.

    Raises:
        InputError: The folder or the disk does not take the file.
    """
    with atomic_file(path) as file:
        file.write(picture_svg(result).encode())


def picture_svg(result: RunResult) -> str:
    """The picture as text."""
    style = (resources.files("wirewise.report") / "colours.css").read_text("utf-8")
    title = f"{result.dataset}, {result.workers} workers {network_words(result)}"
    parts = [
        f"<title>{escape(summary_sentence(result))}</title><style>{style}</style>",
        f'<rect width="{_WIDTH:g}" height="{_HEIGHT:g}" rx="8" style="fill:var(--paper);stroke:var(--rule)"/>',
        svg.text(24, 32, title, "title"),
        _legend(result),
        _nested(16, 66, 540, 300, lines.loss_chart(result, 540, 300) if result.modes else ""),
        _bars(result),
    ]
    body = "".join(parts) + "<style>svg text.title{font-size:16px;font-weight:600}</style>"
    drawn = svg.document(_WIDTH, _HEIGHT, summary_sentence(result), body)
    return drawn.replace("<svg ", f'<svg width="{_WIDTH:g}" height="{_HEIGHT:g}" ', 1) + "\n"


def _nested(x: float, y: float, width: float, height: float, chart: str) -> str:
    return chart.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" ', 1)


def _legend(result: RunResult) -> str:
    at, parts = 24.0, [svg.text(24, 58, "Training loss", "tick")]
    at += 92
    for name in list(result.modes)[:_MODES]:
        parts.append(svg.rect(at, 48, 12, 12, f"bar {lines.colour(result, name)}"))
        parts.append(svg.text(at + 18, 58, name))
        at += 34 + svg.text_width(name)
    return "".join(parts)


def _bars(result: RunResult) -> str:
    """Time per epoch by mode, with the factor against the reference."""
    shown = {n: m for n, m in list(result.modes.items())[:_MODES] if figures.finite(m.epoch_s)}
    longest = max((mode.epoch_s for mode in shown.values()), default=0.0)
    left, right, reference = 600.0, 876.0, figures.reference_name(result)
    parts = [svg.text(left, 58, "Time per epoch, median", "tick")]
    step = min(64.0, 280.0 / max(len(shown), 1))
    for row, (name, mode) in enumerate(shown.items()):
        top = 82 + step * row
        high = min(26.0, step - 20)
        wide = (right - left) * mode.epoch_s / longest
        words = f"{name}  {figures.seconds(mode.epoch_s)}"
        speedup = Comparison.of(result, name).speedup_epoch
        parts.append(svg.text(left, top + 10, words, f"label {lines.colour(result, name)}"))
        parts.append(svg.rect(left, top + 16, wide, high, f"bar {lines.colour(result, name)}"))
        if name != reference and speedup is not None:
            parts.append(svg.text(right, top + 10, figures.factor(speedup), "label", "end"))
    return "".join(parts)
