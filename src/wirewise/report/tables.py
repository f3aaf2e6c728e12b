"""A result as text in a terminal or a pipe."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wirewise.report import figures
from wirewise.report.measures import measures
from wirewise.report.summary import summary_sentence
from wirewise.results import RunResult

__all__ = ["modes_table", "plain_console", "print_result"]

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
        console: Where to write; by default standard output.
    """
    console = console or plain_console()
    # The first line is one line in a pipe too: programs read it.
    console.print(Text(summary_sentence(result), style="bold"), soft_wrap=not console.is_terminal)
    if result.modes:
        console.print()
        console.print(modes_table(result))
    for note in result.notes:
        console.print(Text(f"Note: {note}"), soft_wrap=not console.is_terminal)


def modes_table(result: RunResult) -> Table:
    """One row a measure, one column a mode."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    focus = figures.focus_name(result)
    for name in result.modes:
        table.add_column(Text(name), justify="right", style="bold" if name == focus else "", no_wrap=True)
    for measure in measures(result):
        table.add_row(Text(measure.label), *(Text(cell) for cell in measure.cells))
    return table
