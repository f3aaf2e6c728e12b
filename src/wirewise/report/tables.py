"""A result as text in a terminal or a pipe."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wirewise.report import figures
from wirewise.report.page import modes_comparison
from wirewise.results import Comparison, RunResult

__all__ = ["plain_console", "print_result"]

_PIPE_WIDTH = 200
"""Columns where there is no terminal: wide enough that no cell wraps."""


def plain_console(*, to_stderr: bool = False) -> Console:
    """A console that writes what it is given: nothing is read as markup, and pipes get wide plain lines."""
    console = Console(stderr=to_stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_result(result: RunResult, console: Console | None = None) -> None:
    """Write the summary sentence, the table of modes and the notes to standard output.

    Args:
        result: What to show.
        console: Console to write to; by default standard output.
    """
    console, found = console or plain_console(), modes_comparison(result)
    # The first line is one line in a pipe too: programs read it.
    console.print(Text(found.sentence, style="bold"), soft_wrap=not console.is_terminal)
    if result.modes:
        console.print()
        console.print(_table(found, figures.focus_name(result)))
    for note in result.notes:
        console.print(Text(f"Note: {note}"), soft_wrap=not console.is_terminal)


def _table(found: Comparison, focus: str | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in found.titles:
        style = "bold" if title == focus else ""
        table.add_column(Text(title), justify="right" if title else "left", style=style, no_wrap=bool(title))
    for row in found.rows:
        table.add_row(*map(Text, row))
    return table
