"""Output of all commands: one JSON object, and tables that are plain when piped."""

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
    "save_result",
    "writable_file",
    "write_json",
    "write_out",
]

_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a cursor, color what follows or reverse its order, and bytes of names of files that are no text;
tabs and line feeds do none of it."""
_OF_CELLS = str.maketrans({"\n": "\\n", "\t": "\\t"})
File = TypeVar("File", bound=str | Path | None)
Said = str | tuple[Sequence[str], Iterable[Sequence[str]]]
"""A line, or the titles and rows of a table."""


@contextmanager
def run_folder(out: Path | None, command: str) -> Iterator[Path]:
    """Create a folder for this run alone; by default runs/COMMAND-TIME.

    It is removed if an error occurs before anything is written.

    Raises:
        InputError: Another run writes to the folder, or it cannot be created.
    """
    folder = out or Path("runs") / f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    try:
        with exclusive_folder(folder):
            yield folder
    except WirewiseError:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise


def writable_file(target: File) -> File:
    """Refuse an output file that cannot be written before the work is done, not after it.

    Args:
        target: File that a command is to write. None for none.

    Raises:
        InputError: It is a folder, or its folder is missing or cannot be written.
    """
    if target is not None:
        _expect_writable(target, "")
    return target


def _writable_or_stdout(target: str | None) -> str | None:
    if target not in (None, "-"):
        _expect_writable(str(target), ", or - for stdout")
    return target


def _expect_writable(target: str | Path, other: str) -> None:
    if Path(target).is_dir():
        raise InputError(f"cannot write {str(target)!r}: it is a folder; choose a file{other}")
    if not os.access(Path(target).absolute().parent, os.W_OK):
        raise InputError(
            f"cannot write {target}: its folder does not exist or takes no files; choose a folder that can be written"
        )


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="FILE for one JSON object, or - for stdout.",
        callback=_writable_or_stdout,
    ),
]
"""Type of the `--json` option; its default is None, which writes nothing."""


FolderOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder of all that the run writes; by default runs/COMMAND-TIME."),
]
"""Type of the `--out` option of commands that write a `run_folder`; its default is None."""


def write_json(target: str | os.PathLike[str] | None, record: Mapping[str, Any]) -> None:
    """Write `record` as one line of JSON.

    Args:
        target: File, written atomically; "-" for stdout. None if nothing is written.
        record: Names to JSON values.

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


def save_result(folder: Path, result: msgspec.Struct, page: str) -> Path:
    """Write the result as result.json and its page as report.html; returns the path of the page.

    Raises:
        InputError: The folder is not writable.
    """
    from wirewise.report.shell import write_page

    with atomic_file(folder / "result.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(result)))
    write_page(page, folder / "report.html")
    return folder / "report.html"


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table to stdout, drawn on a terminal and tab-separated when piped; no cell is read as markup."""
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        for row in [titles, *rows]:
            typer.echo("\t".join(map(_one_line, row)))
        return
    table = Table(title=None if title is None else Text(_one_line(title)), title_justify="left")
    for name in titles:
        # In a narrow terminal words are broken, not cut off.
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, map(_one_line, row)))
    console.print(table)


def write_out(json: str | None, record: Mapping[str, Any], *said: Said) -> None:
    """Write a result as JSON, and print its lines and tables unless stdout is taken by the JSON.

    Args:
        json: Target of `JsonOption`.
        record: Names to JSON values.
        said: Lines and tables to print, in order; an empty string prints an empty line.

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
    """Show progress of a long command on stderr, if it is a terminal."""
    from wirewise.report.tables import plain_console

    console = plain_console(to_stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def note(text: str) -> None:
    """Print a progress note to stderr; stdout is left to tables and JSON."""
    print_text(text, err=True)


def print_text(text: str, *, err: bool = False) -> None:
    """Print text that may come from a file, with control characters escaped."""
    typer.echo(_HARMFUL.sub(_escaped, text), err=err)


def _one_line(text: str) -> str:
    return _HARMFUL.sub(_escaped, text).translate(_OF_CELLS)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison as a table, then the result and the notes, one line each."""
    print_table(comparison.titles, comparison.rows)
    for line in (comparison.sentence, *comparison.notes):
        print_text(line)
