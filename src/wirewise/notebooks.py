"""HTML tables for notebooks, returned by `_repr_html_` of plans, predictions and topologies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["table_html"]

_MOST_ROWS = 40
"""Rows of a table in a notebook; of longer ones the rest is counted."""


def table_html(title: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a titled table as HTML; cells are plain text.

    Args:
        title: Sentence above the table.
        titles: Title of each column.
        rows: Cells of each row.
    """
    cells = [list(row) for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells[:_MOST_ROWS]
    )
    left = len(cells) - _MOST_ROWS
    rest = f"<p>and {left} more rows</p>" if left > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p>{escape(title, quote=False)}</p>{table}{rest}"
