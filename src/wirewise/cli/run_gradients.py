"""`wirewise run cupcake`: plans of compressed gradients, measured next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise.cli.options import Given, with_options
from wirewise.cli.output import (
    FolderOption,
    JsonOption,
    print_comparison,
    run_folder,
    save_result,
    write_json,
)
from wirewise.recipes.cupcake_job import Job

__all__ = ["cupcake"]


@with_options
def cupcake(
    trace: Annotated[Path, typer.Option(help="JSON with name, elements and gap_us of each gradient.")],
    given: Given[Job],
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Measure codecs and links, plan compressed groups of gradients, and time the plans in turns (Cupcake)."""
    from wirewise.recipes import cupcake as recipe
    from wirewise.report.gradients_page import gradients_comparison, gradients_html

    job = recipe.make_job(trace, **given.values)
    quiet = json == "-"
    with run_folder(out, "cupcake") as folder:
        result = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, result, gradients_html(result))
    write_json(json, msgspec.to_builtins(result))
    if not quiet:
        print_comparison(gradients_comparison(result))
        typer.echo(f"Report: {page}")
