"""HTML page of methods on the tasks of a growing graph: accuracy and forgetting per task."""

from __future__ import annotations

from wirewise.report import shell, svg
from wirewise.report.comparison_page import comparison_html
from wirewise.report.figures import seconds
from wirewise.report.svg import Frame, Scale
from wirewise.results import Comparison, IncrementalRecord, Variant
from wirewise_papers.sea_er.records import IncrementalRun

__all__ = ["incremental_comparison", "incremental_html"]

_COLOURS = 7
_DASHES = ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 4"')
"""Dashes of the first, second and third method of a colour."""


def incremental_html(run: IncrementalRun) -> str:
    """Render the page."""
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
    grown = shell.section("While the graph grows", lead, f'<div class="pair">{charts}</div>')
    title = f"{run.dataset}: rehearsal while the graph grows"
    return comparison_html(incremental_comparison(run), title, first=[grown])


def incremental_comparison(run: IncrementalRun) -> Comparison:
    """Comparison of methods, sorted by AP."""
    grows = {
        "inductive": "later nodes bring edges to earlier ones",
        "separate": "no edges between tasks",
        "transductive": "the whole graph from the start",
    }
    competing = "the classes of its own task" if run.setting == "task" else "all classes so far"
    return Comparison(
        kind=f"wirewise run sea-er \N{MIDDLE DOT} {run.dataset}, {run.tasks} tasks of {run.classes_per_task} classes, "
        f"{run.setting}-incremental",
        sentence=_sentence(run),
        cards=_cards(run),
        title="Figures",
        what="method",
        variants={
            name: _variant(one) for name, one in sorted(run.methods.items(), key=lambda item: -item[1].ap)
        },
        facts={
            "graph": f"{run.dataset}; {grows[run.growth]}",
            "test nodes": f"those of every task so far, on the current graph, among {competing}",
            "accuracy": "mean over the classes of a task",
            "run": f"workers: {run.workers}, seed: {run.seed}",
        },
    )


def _variant(one: IncrementalRecord) -> Variant:
    return Variant(
        cells={
            "AP %": _percent(one.ap),
            "AF %": _percent(one.af, sign=True),
            "worst task at the end %": _percent(min(one.accuracy[-1])),
            "time": seconds(one.seconds),
        }
    )


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


def _cards(run: IncrementalRun) -> tuple[tuple[str, str, str], ...]:
    best = _best(run)
    least = max(_kept(run), key=lambda name: run.methods[name].af)
    return (
        ("Best AP", f"{_percent(run.methods[best].ap)} %", f"{best}, joint training left aside"),
        ("Least forgotten, AF", f"{_percent(run.methods[least].af, sign=True)} %", least),
        ("Kept of each class", str(run.budget), "nodes, by methods that rehearse"),
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
    ends = svg.spread_labels([y(100 * line[-1]) for line in lines.values()], frame.bottom)
    for number, (name, line) in enumerate(lines.items()):
        colour = f"c{number % _COLOURS + 1}"
        dots = [(x(task + 1), y(100 * value)) for task, value in enumerate(line)]
        dash = _DASHES[number // _COLOURS % len(_DASHES)]
        parts.append(f"<g{dash}>{svg.polyline(dots, f'line {colour}')}</g>")
        parts += [
            svg.circle(a, b, 2.6, f"dot {colour}", f"{name}, {task + 1} tasks: {100 * value:.1f} %")
            for task, ((a, b), value) in enumerate(zip(dots, line, strict=True))
        ]
        parts.append(svg.text(frame.right + 8, ends[number] + 4, name, f"label {colour}"))
    return svg.document(width, height, label, "".join(parts))


def _percent(value: float, *, sign: bool = False) -> str:
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"
