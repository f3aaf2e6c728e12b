"""One comparison of variants that pages show."""

from __future__ import annotations

import msgspec

__all__ = [
    "Comparison",
    "Variant",
]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One of the variants of a comparison: its row of the table and its bar, ready to be shown."""

    cells: dict[str, str]
    """Figures of its row of the table by the titles of the columns, the same for all variants."""
    length: float | None = None
    """Value that its bar shows, in one unit for all variants; None: no bar."""
    words: str = ""
    """Text at the end of the bar."""
    colour: str = "c1"
    """CSS class of its colour on pages: "c0" for a reference, "c2" for the best of several."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Variants of a job that were measured next to each other, in the words of terminals and pages.

    Everything that systems have in common is here; a page adds sections of its own.
    """

    kind: str
    """Command, and on what it ran."""
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
    """Value that a dashed line marks among the bars; 0: no line."""
    meanings: dict[str, str] = {}
    """Meanings of the figures by their titles; if given, the table has a row a figure and a column a variant."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader of the figures must know: what is emulated, simulated, left out."""
    facts: dict[str, str] = {}
    """Versions, settings and the like by name."""

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles above `rows`."""
        if self.meanings:
            return ("", *self.variants)
        return (self.what, *next((one.cells for one in self.variants.values()), {}))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table: one a variant, or where meanings are given one a figure."""
        if self.meanings:
            return [(title, *(one.cells[title] for one in self.variants.values())) for title in self.meanings]
        return [(name, *one.cells.values()) for name, one in self.variants.items()]
