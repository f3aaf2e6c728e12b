"""Advice as one HTML file: the current step, its bottleneck, candidates with predicted and measured times."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from wirewise.advice.records import FAMILIES, Advice, Candidate, StepCurve
from wirewise.report import shell
from wirewise.report.bars import Bar, Stack, bars_chart, stacks_chart
from wirewise.report.curves import Curve, curves_chart
from wirewise.report.figures import MISSING, factor, percent, seconds, signed

__all__ = ["advice_html", "advice_section"]

_COLOURS = ("central", "wire", "other", "marginal")
"""Colours of the parts of a step, in their order."""


def advice_html(advice: Advice) -> str:
    """Render the page as HTML text."""
    parts = [
        shell.head(f"wirewise advise \N{MIDDLE DOT} {advice.ranks} ranks", advice.advice),
        shell.cards(_cards(advice)),
        shell.section("The step today", escape(advice.bound_reason), _parts(advice)),
        *_sections(advice),
        *map(_curve, advice.curves),
        shell.section("Lines to write", "", _code(advice.lines)),
        shell.notes("Notes", advice.notes),
    ]
    return shell.page(f"Advice on {advice.ranks} ranks", parts)


def advice_section(advice: Advice) -> str:
    """Render sentences and a table for a notebook, which brings its own style."""
    return f"<p><b>{escape(advice.advice)}</b></p><p>{escape(advice.bound_reason)}</p>{shell.table(*advice.table())}"


def _cards(advice: Advice) -> Iterator[tuple[str, str, str]]:
    yield "Step, measured", seconds(advice.step_s), f"{advice.steps} steps of {advice.ranks} ranks"
    yield "Bound by", advice.bound_by, ""
    error = advice.held_out_error
    yield "Prediction, held out", MISSING if error is None else percent(error), "mean error in steps not seen"


def _parts(advice: Advice) -> str:
    colours = dict(zip(advice.parts_s, _COLOURS * len(advice.parts_s), strict=False))
    row = Stack("mean rank", advice.parts_s, seconds(sum(advice.parts_s.values())))
    chart = stacks_chart([row], colours, "Where a step goes")
    return shell.figure(chart, shell.legend({part: f"p-{colour}" for part, colour in colours.items()}))


def _sections(advice: Advice) -> Iterator[str]:
    lead = "Seconds of a step for as many samples as now. The dashed line is the step today."
    chart = bars_chart(list(_bars(advice)), "Candidates", advice.step_s)
    # Figures fill the width; notes stand below them.
    (*titles, _), rows = advice.table()
    figures = shell.table(titles, [row[:-1] for row in rows])
    yield shell.section("What changes give", lead, shell.figure(chart) + figures)
    yield shell.section("On these changes", "", shell.terms({row[0]: row[-1] for row in rows if row[-1]}))
    reasons = {FAMILIES.get(family, family): reason for family, reason in advice.not_applicable.items()}
    yield shell.section("What does not apply", "", shell.terms(reasons))


def _curve(curve: StepCurve) -> str:
    """Section of one curve, with the value at which its change breaks even."""
    times = curve.over != "ranks"
    places = [factor(value) if times else f"{value:g}" for value in curve.values]
    lines = [Curve("as it is", curve.as_it_is_s)]
    lead = f"Predicted by replay of the recorded steps at other {'rates' if times else 'numbers of ranks'}."
    if curve.change:
        lines.append(Curve(curve.change, curve.changed_s))
        lead += f" {_break_even(curve, times)}"
    title = f"A step over the {curve.over}" if times else "A step over ranks"
    x_title = "rate of all links, as a multiple of that now" if times else "ranks"
    chart = curves_chart(lines, places, title, x_title)
    rows = [[line.label, *map(seconds, line.seconds)] for line in lines]
    return shell.section(title, escape(lead), shell.figure(chart) + shell.table(["", *places], rows))


def _break_even(curve: StepCurve, times: bool) -> str:
    if curve.break_even is None:
        return "Between these the same one stays shorter."
    at = f"{factor(curve.break_even)} the rate of links now" if times else f"{curve.break_even:.0f} ranks"
    return f"Both take as long at {at}."


def _bars(advice: Advice) -> Iterator[Bar]:
    for one in advice.candidates:
        for source, value, colour in _values(one):
            length, step_s = value / one.work, advice.step_s
            beside = ""
            if source == "measured" and one.baseline_step_s:
                # Against the steps beside it; the machine may have been faster before.
                step_s, beside = one.baseline_step_s, f" of {seconds(one.baseline_step_s)}"
            words = f"{seconds(length)} {source} ({signed(length / step_s - 1)}{beside})"
            yield Bar(f"{one.family}: {one.planner}", length * advice.step_s / step_s, words, colour)


def _values(one: Candidate) -> Iterator[tuple[str, float, str]]:
    if one.predicted_step_s is not None:
        yield "predicted", one.predicted_step_s, "c1"
    if one.measured_step_s is not None:
        yield "measured", one.measured_step_s, "c2"


def _code(lines: tuple[str, ...]) -> str:
    return f"<pre><code>{escape(chr(10).join(lines))}</code></pre>" if lines else ""
