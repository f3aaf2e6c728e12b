"""One HTML file about variants that were measured next to each other, the same for every system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from wirewise.report import shell
from wirewise.report.bars import Bar, bars_chart
from wirewise.report.figures import seconds, signed
from wirewise.results import Comparison, PlanRecord, PredictedStep, Variant

__all__ = ["best_of", "comparison_html", "fastest", "predicted_variant"]


def comparison_html(
    found: Comparison, title: str, sections: Iterable[str] = (), *, first: Iterable[str] = ()
) -> str:
    """The page as text: sentence, cards, bars and table, sections of the system, notes.

    Args:
        found: What was compared.
        title: Text of the browser's window.
        sections: HTML that follows the table.
        first: HTML that comes before bars and table.
    """
    parts = [
        shell.head(found.kind, found.sentence),
        shell.cards(found.cards),
        *first,
        shell.section(escape(found.title), escape(found.lead), _chart(found) + _table(found)),
        *sections,
        shell.notes("How this was measured", found.notes, found.facts),
    ]
    return shell.page(title, parts)


def best_of(name: str, best: str, reference: str | None = None) -> str:
    """Colour of a variant, by whether it is the reference of the others, or the best."""
    if name == reference:
        return "c0"
    return "c2" if name == best else "c1"


def predicted_variant(step: PredictedStep | PlanRecord, colour: str, cells: Mapping[str, str]) -> Variant:
    """A variant whose step was measured and predicted.

    Args:
        step: Seconds of the step, measured and predicted.
        colour: Colour of the bar, by `best_of`.
        cells: Cells of the table by column.
    """
    words = f"{seconds(step.step_s)} (predicted {seconds(step.predicted_step_s)}, {signed(step.error)})"
    return Variant(length=step.step_s, words=words, colour=colour, cells=dict(cells))


def fastest(name: str, of: int, noun: str, took: str) -> str:
    """First words of a sentence: what is the fastest, and how long it takes.

    Args:
        name: Name of the fastest variant.
        of: Number of variants.
        noun: Name of a variant in the singular.
        took: Time of the fastest variant, such as "0.250 s a step".
    """
    return f"{name} is the fastest of {of} {noun}s: {took}" if of > 1 else f"{name} takes {took}"


def _chart(found: Comparison) -> str:
    bars = [
        Bar(name, one.length, one.words, one.colour)
        for name, one in found.variants.items()
        if one.length is not None
    ]
    return shell.figure(bars_chart(bars, found.title, found.goal))


def _table(found: Comparison) -> str:
    if not found.meanings:
        return shell.table(found.titles, found.rows)
    rows = [(escape(title), cells, found.meanings[title]) for title, *cells in found.rows]
    return shell.explained({name: one.colour for name, one in found.variants.items()}, rows)
