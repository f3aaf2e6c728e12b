"""Plans as tables of a page."""

from __future__ import annotations

from html import escape

from wirewise.plans import BitWidthPlan, Plan
from wirewise.report import figures, shell

__all__ = ["channel_tables", "plan_html"]

_MOST_RANKS = 16
"""Most ranks whose channels are shown one by one: a larger grid does not fit the page."""

_Cells = tuple[str, list[str], list[list[str]]]
"""Headline, column titles, rows."""


def plan_html(plan: Plan) -> str:
    """Render a plan as HTML tables with its headline; all text is escaped."""
    headline = plan.headline.partition(":")[0]
    grids = "".join(_table(*cells, kind="channels") for cells in channel_tables(plan))
    more = f'<div class="grids">{grids}</div>' if grids else ""
    return _table(headline, *_told(plan), kind="plan") + more


def channel_tables(plan: Plan) -> list[_Cells]:
    """Headline, column titles and rows for each exchange: mean bits from each rank to each rank.

    Empty for plans without channels, and for more than 16 ranks.
    """
    if not isinstance(plan, BitWidthPlan) or plan.world_size > _MOST_RANKS:
        return []
    return [_grid(plan, exchange) for exchange in plan.exchanges]


def _grid(plan: BitWidthPlan, exchange: str) -> _Cells:
    means = {
        (c.sender, c.receiver): figures.bits(sum(c.bits) / len(c.bits)) if c.bits else figures.MISSING
        for c in plan.of(exchange)
    }
    ranks = range(plan.world_size)
    titles = ["", *(f"to {receiver}" for receiver in ranks)]
    rows = [
        [f"from {sender}", *(means.get((sender, receiver), "") for receiver in ranks)] for sender in ranks
    ]
    return f"{exchange}, mean bits by channel", titles, rows


def _told(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """The plan's own table without the columns that say nothing in any row."""
    titles, rows = plan.table()
    kept = [
        i for i in range(len(titles)) if not rows or any(row[i].strip() not in {"0", "-"} for row in rows)
    ]
    return [titles[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _table(headline: str, titles: list[str], rows: list[list[str]], kind: str) -> str:
    return f'<figure class="{kind}"><figcaption>{escape(headline)}</figcaption>{shell.table(titles, rows)}</figure>'
