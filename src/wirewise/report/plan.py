"""Plans as tables, in the terminal and on the page."""

from __future__ import annotations

from html import escape
from typing import Literal

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from wirewise.plans import BitWidthPlan, Plan
from wirewise.report import figures

__all__ = ["channel_tables", "draw_plan", "plan_html"]

_MOST_RANKS = 16
"""Most ranks whose channels are shown one by one: a larger grid fits neither a terminal nor a page."""

_Cells = tuple[str, list[str], list[list[str]]]
"""Headline, column titles, rows."""


def draw_plan(plan: Plan) -> Group:
    """The plan as tables for a rich console: one row an exchange, then one grid of channels an exchange."""
    titles, rows = _told(plan)
    return Group(
        _table(_headline(plan), titles, rows), *(_table(*cells, gap=True) for cells in channel_tables(plan))
    )


def plan_html(plan: Plan) -> str:
    """The plan as HTML tables with its headline; all text is escaped."""
    titles, rows = _told(plan)
    grids = "".join(_html(*cells, kind="channels") for cells in channel_tables(plan))
    more = f'<div class="grids">{grids}</div>' if grids else ""
    return _html(_headline(plan), titles, rows, kind="plan") + more


def channel_tables(plan: Plan) -> list[_Cells]:
    """For each exchange a headline, column titles and rows: mean bits from each rank to each rank.

    Empty for plans that say nothing of channels, and for more than 16 ranks.
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


def _table(headline: str, titles: list[str], rows: list[list[str]], *, gap: bool = False) -> Table:
    title = Text(("\n" if gap else "") + headline, style="bold")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, name in enumerate(titles):
        # Titles may wrap between words; figures are never cut.
        needed = max(map(len, [*name.split(), *(row[number] for row in rows)]), default=0)
        side: Literal["left", "right"] = "right" if _is_numeric(rows, number) else "left"
        table.add_column(Text(name), justify=side, min_width=needed)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _html(headline: str, titles: list[str], rows: list[list[str]], kind: str) -> str:
    classes = [' class="num"' if _is_numeric(rows, number) else "" for number in range(len(titles))]

    def cells(tag: str, texts: list[str]) -> str:
        return "".join(f"<{tag}{c}>{escape(t)}</{tag}>" for t, c in zip(texts, classes, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<figure class="{kind}"><figcaption>{escape(headline)}</figcaption><div class="scroll">'
        f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table></div></figure>"
    )


def _headline(plan: Plan) -> str:
    return f"{plan.family} plan by {plan.planner!r} for {plan.world_size} ranks"


def _is_numeric(rows: list[list[str]], column: int) -> bool:
    cells = [row[column].strip() for row in rows]
    return any(cells) and all(
        cell[:1].isdigit() or cell[:1] in "+-." + figures.MISSING for cell in cells if cell
    )
