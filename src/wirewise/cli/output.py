"""What every command shares on the way out: one JSON object, tables that are plain when piped."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from wirewise.errors import InputError, WirewiseError
from wirewise.files import atomic_file, exclusive_folder
from wirewise.results import Comparison

__all__ = [
    "FolderOption",
    "JsonOption",
    "note",
    "print_comparison",
    "print_table",
    "print_text",
    "progress",
    "run_folder",
    "run_recipe",
    "save_result",
    "write_json",
    "write_out",
]

_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move a cursor, color what follows or reverse its order; tabs and line feeds do none of it."""
_OF_CELLS = str.maketrans({"\n": "\\n", "\t": "\\t"})
Found = TypeVar("Found", bound=msgspec.Struct)
Said = str | tuple[Sequence[str], Iterable[Sequence[str]]]
"""A line, or the titles and rows of a table."""


@contextmanager
def run_folder(out: Path | None, command: str) -> Iterator[Path]:
    """Folder of a run, for this run alone; by default runs/COMMAND-TIME.

    It goes again if nothing was written before an error.

    Raises:
        InputError: Another run writes to it, or it cannot be made.
    """
    folder = out or Path("runs") / f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    try:
        with exclusive_folder(folder):
            yield folder
    except WirewiseError:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise


def _writable(target: str | None) -> str | None:
    """Refuse a file that cannot be written before the work is done, not after it."""
    if target is None or target == "-":
        return target
    if Path(target).is_dir():
        raise InputError(f"cannot write {target!r}: it is a folder; choose a file, or - for stdout")
    if not os.access(Path(target).absolute().parent, os.W_OK):
        raise InputError(
            f"cannot write {target}: its folder does not exist or takes no files; choose a folder that can be written"
        )
    return target


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="FILE for one JSON object, or - for stdout.",
        callback=_writable,
    ),
]
"""Type of the `--json` option; its default is None, which writes nothing."""


FolderOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder of all that the run writes; by default runs/COMMAND-TIME."),
]
"""Type of the `--out` option of commands that write a `run_folder`; its default is None."""


def write_json(target: str | os.PathLike[str] | None, record: Mapping[str, Any]) -> None:
    """Write `record` as one JSON object and a line feed.

    Args:
        target: A file, replaced whole or not at all; "-" for stdout; None: nothing is written.
        record: Names to values that JSON knows.

    Raises:
        InputError: The file cannot be written, or the record holds a number that JSON cannot express.
    """
    if target is None:
        return
    try:
        text = json.dumps(record, allow_nan=False) + "\n"
    except ValueError as error:
        raise InputError(
            f"the result cannot be written as JSON ({error}); a NaN or infinite measure means that the run "
            "itself went wrong, look at its table"
        ) from error
    if os.fspath(target) == "-":
        typer.echo(text, nl=False)
        return
    with atomic_file(target) as file:
        file.write(text.encode())


def save_result(folder: Path, found: msgspec.Struct, page: str) -> Path:
    """Write what a run found as result.json, and its page as report.html; the path of the page.

    Raises:
        InputError: The folder takes no files.
    """
    from wirewise.report.shell import write_page

    with atomic_file(folder / "result.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(found)))
    write_page(page, folder / "report.html")
    return folder / "report.html"


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table to stdout: drawn on a terminal, tab-separated lines when piped; no cell is read as markup."""
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        for row in [titles, *rows]:
            typer.echo("\t".join(map(_one_line, row)))
        return
    table = Table(*titles, title=None if title is None else Text(_one_line(title)), title_justify="left")
    for row in rows:
        table.add_row(*map(Text, map(_one_line, row)))
    console.print(table)


def write_out(json: str | None, record: Mapping[str, Any], *said: Said) -> None:
    """Write what a command found as JSON, and print what is said of it, unless stdout is for the JSON.

    Args:
        json: Target of `JsonOption`.
        record: Names to values that JSON knows.
        said: Lines and tables in their order; an empty line stays one.

    Raises:
        InputError: Raised by `write_json`.
    """
    write_json(json, record)
    if json == "-":
        return
    for part in said:
        if isinstance(part, str):
            print_text(part)
        else:
            print_table(*part)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Shows in a terminal, on stderr, how far a long command is, as long as it lasts."""
    from wirewise.report.tables import plain_console

    console = plain_console(to_stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def note(text: str) -> None:
    """Tell what goes on, on stderr: stdout is the table's, or the JSON object's."""
    print_text(text, err=True)


def print_text(text: str, *, err: bool = False) -> None:
    """Print text whose parts may come from a file: control characters are shown, not sent to the terminal."""
    typer.echo(_HARMFUL.sub(_escaped, text), err=err)


def _one_line(text: str) -> str:
    return _HARMFUL.sub(_escaped, text).translate(_OF_CELLS)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def print_comparison(found: Comparison) -> None:
    """Print what was compared as a table, then the result and the notes, a line each."""
    print_table(found.titles, found.rows)
    for line in (found.sentence, *found.notes):
        print_text(line)


def run_recipe(
    command: str,
    out: Path | None,
    json: str | None,
    run: Callable[[Path, Callable[[str], None]], Found],
    page: Callable[[Found], str],
    compared: Callable[[Found], Comparison],
    *,
    plan: Callable[[Path, Found], Path] | None = None,
) -> None:
    """Run a recipe in a folder of its own; write its result, its page and its JSON, and print the comparison.

    Args:
        command: Name of the command, for the folder.
        out: Folder of the run, if one was named.
        json: Target of `JsonOption`.
        run: The recipe, called with the folder and with what hears of its progress.
        page: HTML of the result.
        compared: The result in words.
        plan: File of the plan to use, if the recipe writes one.
    """
    with run_folder(out, command) as folder:
        found = run(folder, lambda text: print_text(text, err=json == "-"))
        report = save_result(folder, found, page(found))
    write_json(json, msgspec.to_builtins(found))
    if json != "-":
        print_comparison(compared(found))
        print_text(f"Plan: {plan(folder, found)}, report: {report}" if plan else f"Report: {report}")
