"""What the commands of `wirewise run` share: settings from options, words by comma, the file of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

from wirewise.files import atomic_file

__all__ = ["save_result", "settings", "words"]


def settings(ctx: typer.Context, record: type[msgspec.Struct], **others: Any) -> dict[str, Any]:
    """Fields of a record from the options of the same names, and from --timeout.

    Args:
        ctx: Call of the command.
        record: What the fields are for.
        others: Fields whose options are called or written otherwise.
    """
    given = ctx.params | {"timeout_s": ctx.params["timeout"]}
    return {name: given[name] for name in record.__struct_fields__ if name in given} | others


def words(text: str) -> tuple[str, ...]:
    """Words by comma."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def save_result(folder: Path, found: msgspec.Struct, page: str) -> Path:
    """Write what a run found as result.json, and its page as report.html; the path of the page.

    Raises:
        InputError: The folder takes no files.
    """
    with atomic_file(folder / "result.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(found)))
    with atomic_file(folder / "report.html") as file:
        file.write(page.encode())
    return folder / "report.html"
