"""Page of measured variants as one HTML file, the same for every system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Protocol

from wirewise.report import shell
from wirewise.report.bars import Bar, bars_chart
from wirewise.report.figures import seconds, signed
from wirewise.results import Comparison, Variant

__all__ = ["best_of", "comparison_html", "fastest", "predicted_variant"]


class _Step(Protocol):
    @property
    def step_s(self) -> float: ...
    @property
    def predicted_step_s(self) -> float: ...
    @property
    def error(self) -> float: ...


def comparison_html(
    comparison: Comparison, title: str, sections: Iterable[str] = (), *, first: Iterable[str] = ()
) -> str:
    """Render the page: sentence, cards, bars and table, sections of the system, notes.

    Args:
        comparison: Comparison to show.
        title: Title of the window.
        sections: HTML after the table.
        first: HTML before bars and table.
    """
    parts = [
        shell.head(comparison.kind, comparison.sentence),
        shell.cards(comparison.cards),
        *first,
        shell.section(
            escape(comparison.title), escape(comparison.lead), _chart(comparison) + _table(comparison)
        ),
        *sections,
        shell.notes("How this was measured", comparison.notes, comparison.facts),
    ]
    return shell.page(title, parts)


def best_of(name: str, best: str, reference: str | None = None) -> str:
    """Colour of a variant: that of the baseline, of the best, or of the others."""
    if name == reference:
        return "c0"
    return "c2" if name == best else "c1"


def predicted_variant(step: _Step, colour: str, cells: Mapping[str, str]) -> Variant:
    """Variant with a measured and a predicted step.

    Args:
        step: Step time in seconds, measured and predicted.
        colour: Colour of the bar, from `best_of`.
        cells: Cells of the table by column.
    """
    words = f"{seconds(step.step_s)} (predicted {seconds(step.predicted_step_s)}, {signed(step.error)})"
    return Variant(length=step.step_s, words=words, colour=colour, cells=dict(cells))


def fastest(name: str, of: int, noun: str, duration: str) -> str:
    """Start of a sentence that names the fastest variant and its time.

    Args:
        name: Name of the fastest variant.
        of: Number of variants.
        noun: Name of a variant in the singular.
        duration: Time of the fastest variant, such as "0.250 s per step".
    """
    return f"{name} is the fastest of {of} {noun}s: {duration}" if of > 1 else f"{name} takes {duration}"


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
    return shell.measures_table({name: one.colour for name, one in found.variants.items()}, rows)
