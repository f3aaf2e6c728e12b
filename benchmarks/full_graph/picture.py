"""One SVG of a run for a README: loss over time at the left, time per epoch at the right.

python benchmarks/full_graph/picture.py RUN/result.json docs/_static/adaqp.svg
"""

from __future__ import annotations

import sys
from html import escape
from importlib import resources
from pathlib import Path

from wirewise.decoding import decode_json
from wirewise.report import figures, svg
from wirewise_papers.adaqp import lines
from wirewise_papers.adaqp.pairs import ModePair, accuracy_of, focus_name, reference_name
from wirewise_papers.adaqp.records import RunResult
from wirewise_papers.adaqp.summary import network_words, summary_sentence

_WIDTH, _HEIGHT = 900.0, 380.0
_MODES = 6
"""Most modes that the bars have room for; the first ones are drawn."""


def picture_svg(result: RunResult) -> str:
    """The picture as text."""
    style = (resources.files("wirewise.report") / "colours.css").read_text("utf-8")
    title = f"{result.dataset}, {result.workers} workers {network_words(result)}"
    chart = lines.loss_chart(result, 540, 300) if result.modes else ""
    paper = "fill:var(--paper);stroke:var(--rule)"
    parts = [
        f"<title>{escape(summary_sentence(result))}</title><style>{style}</style>",
        f'<rect width="{_WIDTH:g}" height="{_HEIGHT:g}" rx="8" style="{paper}"/>',
        svg.text(24, 32, title, "title"),
        _legend(result),
        chart.replace("<svg ", '<svg x="16" y="66" width="540" height="300" ', 1),
        _bars(result),
    ]
    body = "".join(parts)
    drawn = svg.document(_WIDTH, _HEIGHT, summary_sentence(result), body)
    return drawn.replace("<svg ", f'<svg width="{_WIDTH:g}" height="{_HEIGHT:g}" ', 1) + "\n"


def _legend(result: RunResult) -> str:
    at, parts = 24.0, [svg.text(24, 58, "Training loss", "tick")]
    at += 92
    for name in list(result.modes)[:_MODES]:
        parts.append(svg.rect(at, 48, 12, 12, f"bar {lines.colour(result, name)}"))
        parts.append(svg.text(at + 18, 58, name))
        at += 34 + svg.text_width(name)
    return "".join(parts)


def _bars(result: RunResult) -> str:
    """Time per epoch by mode, with the factor against the reference; below, what else was gained or lost."""
    shown = {n: m for n, m in list(result.modes.items())[:_MODES] if figures.finite(m.epoch_s)}
    longest = max((mode.epoch_s for mode in shown.values()), default=0.0)
    left, right, reference = 600.0, 876.0, reference_name(result)
    facts = _facts(result)
    room = 366.0 - 78.0 - (22 * len(facts) + 14 if facts else 0)
    step = min(78.0, room / max(len(shown), 1))
    parts = [svg.text(left, 58, "Time per epoch, median", "tick")]
    for row, (name, mode) in enumerate(shown.items()):
        top, kind = 78 + step * row, lines.colour(result, name)
        high = min(30.0, step - 22)
        wide = 0.72 * (right - left) * mode.epoch_s / longest
        speedup = ModePair.of(result, name).speedup_epoch
        parts.append(svg.text(left, top + 12, f"{name}, {figures.seconds(mode.epoch_s)}", f"label {kind}"))
        parts.append(svg.rect(left, top + 19, wide, high, f"bar {kind}"))
        if name != reference and speedup is not None:
            size = "factor" if high > 20 else "label"
            middle = top + 19 + high / 2 + (8 if high > 20 else 4)
            parts.append(svg.text(left + wide + 10, middle, figures.factor(speedup), f"{size} {kind}"))
    for row, fact in enumerate(facts):
        parts.append(svg.text(left, 356 - 22 * (len(facts) - 1 - row), fact))
    return "".join(parts)


def _facts(result: RunResult) -> list[str]:
    """What the compared mode sent and reached next to the reference, in short lines."""
    name = focus_name(result)
    if name is None:
        return []
    both, reference = ModePair.of(result, name), reference_name(result)
    facts = []
    if both.bytes_ratio is not None:
        sent, instead = figures.size(both.mode.bytes_sent), figures.size(both.reference.bytes_sent)
        facts.append(f"{sent} payload sent instead of {instead}")
    if both.accuracy_delta_points is not None:
        reached, instead = (figures.percent(accuracy_of(m)) for m in (both.mode, both.reference))
        facts.append(f"{reached} test accuracy instead of {instead}")
    return [f"{name} against {reference}:", *facts] if facts else []


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture_svg(decode_json(Path(sys.argv[1]).read_bytes(), RunResult)))
