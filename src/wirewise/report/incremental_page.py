"""One HTML file about methods that learnt the tasks of a growing graph: accuracy and forgetting, task by task."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from wirewise.report import shell, svg
from wirewise.report.figures import seconds
from wirewise.report.svg import Frame, Scale
from wirewise.results import IncrementalRecord, IncrementalRun

__all__ = ["incremental_html"]

_COLOURS = 7
_APART = 14.0
"""Pixels between the names at the ends of lines."""
_DASHES = ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 4"')
"""For the second and third method of a colour."""


def incremental_html(run: IncrementalRun) -> str:
    """The page as text."""
    kind = (
        f"wirewise run sea-er \N{MIDDLE DOT} {run.dataset}, {run.tasks} tasks of {run.classes_per_task} classes, "
        f"{run.setting}-incremental"
    )
    ap = {name: one.ap_by_task for name, one in run.methods.items()}
    af = {name: one.af_by_task for name, one in run.methods.items()}
    charts = (
        f"<figure><h3>AP, average performance</h3>{_chart(ap, 'AP by method over tasks')}</figure>"
        f"<figure><h3>AF, average forgetting</h3>{_chart(af, 'AF by method over tasks')}</figure>"
    )
    lead = (
        "AP after a task: mean accuracy over the tasks so far. AF: how far they have moved on average since each "
        "was learnt; below zero is forgotten."
    )
    sections = [
        shell.head(kind, _sentence(run)),
        _cards(run),
        shell.section("While the graph grows", lead, f'<div class="pair">{charts}</div>'),
        shell.section("Figures", "", _table(run)),
        shell.section("How this was measured", "", shell.table(("", ""), _method(run))),
    ]
    return shell.page(f"{run.dataset}: rehearsal while the graph grows", sections)


def _kept(run: IncrementalRun) -> dict[str, IncrementalRecord]:
    """Methods that do not see all old labels again."""
    return {name: one for name, one in run.methods.items() if name != "joint"} or run.methods


def _best(run: IncrementalRun) -> str:
    kept = _kept(run)
    return max(kept, key=lambda name: kept[name].ap)


def _sentence(run: IncrementalRun) -> str:
    best = _best(run)
    one = run.methods[best]
    said = f"{best} ends at {_percent(one.ap)} % average accuracy over {run.tasks} tasks"
    others = [
        f"{words} {_percent(run.methods[name].ap)} %"
        for name, words in (("bare", "fine-tuning"), ("joint", "training on all tasks"))
        if name in run.methods and name != best
    ]
    return f"{said}; {', '.join(others)}." if others else f"{said}."


def _cards(run: IncrementalRun) -> str:
    best = _best(run)
    least = max(_kept(run), key=lambda name: run.methods[name].af)
    return shell.cards(
        [
            ("Best AP", f"{_percent(run.methods[best].ap)} %", f"{best}, joint training left aside"),
            ("Least forgotten, AF", f"{_percent(run.methods[least].af, sign=True)} %", least),
            ("Kept of each class", str(run.budget), "vertices, by methods that rehearse"),
        ]
    )


def _chart(lines: dict[str, tuple[float, ...]], label: str, width: float = 560, height: float = 340) -> str:
    """A line a method over tasks, in %, its name at its end."""
    values = [100 * value for line in lines.values() for value in line]
    wide = max(svg.text_width(name, 12.5) for name in lines)
    frame = Frame(52, 12, width - wide - 14, height - 46)
    low, high = min(values), max(values)
    margin = 0.05 * ((high - low) or 1.0)
    tasks = len(next(iter(lines.values())))
    x = Scale(1, max(tasks, 2), frame.left, frame.right)
    y = Scale(low - margin, high + margin, frame.bottom, frame.top)
    parts = [svg.axes(frame, x, y, "tasks learnt", "{:g} %", whole=True)]
    ends = _spread([y(100 * line[-1]) for line in lines.values()], frame.bottom)
    for number, (name, line) in enumerate(lines.items()):
        colour = _colour(number)
        dots = [(x(task + 1), y(100 * value)) for task, value in enumerate(line)]
        dash = _DASHES[number // _COLOURS % len(_DASHES)]
        parts.append(f"<g{dash}>{svg.polyline(dots, f'line {colour}')}</g>")
        parts += [
            f'<circle cx="{svg.number(a)}" cy="{svg.number(b)}" r="2.6" class="dot {colour}" '
            f'data-tip="{escape(name)}, {task + 1} tasks: {100 * value:.1f} %"/>'
            for task, ((a, b), value) in enumerate(zip(dots, line, strict=True))
        ]
        parts.append(svg.text(frame.right + 8, ends[number] + 4, name, f"label {colour}"))
    return svg.document(width, height, label, "".join(parts))


def _spread(heights: list[float], bottom: float) -> list[float]:
    """The heights in their order, moved so far that names do not lie on each other."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    for above, below in pairwise(order):
        placed[below] = max(placed[below], placed[above] + _APART)
    placed[order[-1]] = min(placed[order[-1]], bottom)
    for below, above in pairwise(reversed(order)):
        placed[above] = min(placed[above], placed[below] - _APART)
    return placed


def _colour(number: int) -> str:
    return f"c{number % _COLOURS + 1}"


def _table(run: IncrementalRun) -> str:
    rows = [
        (
            name,
            _percent(one.ap),
            _percent(one.af, sign=True),
            _percent(min(one.accuracy[-1])),
            seconds(one.seconds),
        )
        for name, one in sorted(run.methods.items(), key=lambda item: -item[1].ap)
    ]
    return shell.table(("method", "AP %", "AF %", "worst task at the end %", "time"), rows)


def _method(run: IncrementalRun) -> list[tuple[str, str]]:
    grows = {
        "inductive": "later vertices bring edges to earlier ones",
        "separate": "no edges between tasks",
        "transductive": "the whole graph from the start",
    }
    competing = "the classes of its own task" if run.setting == "task" else "all classes so far"
    return [
        ("graph", f"{run.dataset}; {grows[run.growth]}"),
        ("test vertices", f"of every task so far, on the current graph, among {competing}"),
        ("accuracy", "mean over the classes of a task"),
        ("run", f"workers: {run.workers}, seed: {run.seed}"),
    ]


def _percent(value: float, *, sign: bool = False) -> str:
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"
