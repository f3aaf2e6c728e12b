"""Compared variants, and predicted steps."""

from __future__ import annotations

import msgspec

__all__ = ["Comparison", "PredictedStep", "Variant"]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Variant of a comparison: its table row and its bar, formatted."""

    cells: dict[str, str]
    """Cells of its table row by column title, the same for all variants."""
    length: float | None = None
    """Value of its bar, in the same unit for all variants. None for no bar."""
    words: str = ""
    """Text at the end of the bar."""
    colour: str = "c1"
    """CSS class of its colour on pages: "c0" for a reference, "c2" for the best of several."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of variants of a job measured in one run, with text for terminals and pages.

    It holds everything that systems have in common; a page adds its own sections.
    """

    kind: str
    """Command and environment of the run."""
    sentence: str
    """Result with its conditions."""
    cards: tuple[tuple[str, str, str], ...] = ()
    """Title, value and detail of each main figure."""
    title: str
    """Heading of bars and table."""
    lead: str = ""
    """Explanation of bars and table: what was measured, how, and what the dashed line is."""
    what: str
    """Name of a variant in the singular: "plan", "mode", "method"."""
    variants: dict[str, Variant]
    goal: float = 0.0
    """Value marked by a dashed line in the bar chart; 0 for no line."""
    meanings: dict[str, str] = {}
    """Meanings of the figures by title; if given, the table has one row per figure and one column per variant."""
    notes: tuple[str, ...] = ()
    """Caveats of the figures: emulated, simulated and omitted parts."""
    facts: dict[str, str] = {}
    """Versions, settings and other facts by name."""

    @property
    def titles(self) -> tuple[str, ...]:
        """Column titles of `rows`."""
        if self.meanings:
            return ("", *self.variants)
        return (self.what, *next((one.cells for one in self.variants.values()), {}))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Table rows: one per variant, or one per figure if meanings are given."""
        if self.meanings:
            return [(title, *(one.cells[title] for one in self.variants.values())) for title in self.meanings]
        return [(name, *one.cells.values()) for name, one in self.variants.items()]


class PredictedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Measured and predicted step time; a step of a pipeline is an update of its weights."""

    step_s: float
    """Median seconds of a step."""
    predicted_step_s: float
    """Simulated seconds of a step."""

    @property
    def error(self) -> float:
        """Relative error: predicted / measured - 1."""
        return self.predicted_step_s / self.step_s - 1.0
