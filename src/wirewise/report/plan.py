"""Plans as tables, in the terminal and on the page."""

from __future__ import annotations

from html import escape

from rich import box
from rich.table import Table
from rich.text import Text

from wirewise.plans import Plan

__all__ = ["draw_plan", "plan_html"]


def draw_plan(plan: Plan) -> Table:
    """The plan as a table for a rich console."""
    titles, rows = plan.table()
    table = Table(title=Text(_headline(plan)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(Text(title), justify="right" if _is_numeric(rows, number) else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def plan_html(plan: Plan) -> str:
    """The plan as an HTML table with its headline; all text is escaped."""
    titles, rows = plan.table()
    kinds = ["num" if _is_numeric(rows, number) else "" for number in range(len(titles))]

    def cells(tag: str, texts: list[str]) -> str:
        return "".join(
            f'<{tag} class="{kind}">{escape(text)}</{tag}>' for text, kind in zip(texts, kinds, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<figure class="plan"><figcaption>{escape(_headline(plan))}</figcaption><div class="scroll">'
        f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table></div></figure>"
    )


def _headline(plan: Plan) -> str:
    return f"{plan.family} plan by {plan.planner!r} for {plan.world_size} ranks"


def _is_numeric(rows: list[list[str]], column: int) -> bool:
    cells = [row[column].strip() for row in rows]
    return bool(cells) and all(cell[:1].isdigit() or cell[:1] in "+-." for cell in cells if cell)
