"""Comparison as text in a terminal or a pipe."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wirewise.results import Comparison

__all__ = ["plain_console", "print_comparison"]

_PIPE_WIDTH = 200
"""Columns where there is no terminal: wide enough that no cell wraps."""


def plain_console(*, to_stderr: bool = False) -> Console:
    """Console without markup; output is wide plain lines when piped."""
    console = Console(stderr=to_stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_comparison(
    comparison: Comparison, focus: str | None = None, console: Console | None = None
) -> None:
    """Print the sentence, the table and the notes of a comparison.

    Args:
        comparison: Comparison to write.
        focus: Variant to print in bold. None for none.
        console: Output console. Defaults to standard output.
    """
    console = console or plain_console()
    # The first line is one line in a pipe too: programs read it.
    console.print(Text(comparison.sentence, style="bold"), soft_wrap=not console.is_terminal)
    if comparison.variants:
        console.print()
        console.print(_table(comparison, focus))
    for note in comparison.notes:
        console.print(Text(f"Note: {note}"), soft_wrap=not console.is_terminal)


def _table(found: Comparison, focus: str | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in found.titles:
        style = "bold" if title == focus else ""
        table.add_column(Text(title), justify="right" if title else "left", style=style, no_wrap=bool(title))
    for row in found.rows:
        table.add_row(*map(Text, row))
    return table
