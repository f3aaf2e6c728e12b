"""`wirewise run sea-er`: rehearsal of old vertices while a graph grows, method by method."""

from __future__ import annotations

import msgspec
import typer

from wirewise.cli.options import with_options
from wirewise.cli.output import (
    FolderOption,
    JsonOption,
    print_comparison,
    run_folder,
    save_result,
    write_json,
)
from wirewise.recipes.sea_er_job import Job

__all__ = ["sea_er"]


@with_options
def sea_er(
    job: Job,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Learn the tasks of a growing graph with rehearsal of old vertices (SEA-ER), next to other methods."""
    from wirewise.recipes import sea_er as recipe
    from wirewise.report.incremental_page import incremental_comparison, incremental_html

    quiet = json == "-"
    with run_folder(out, "sea-er") as folder:
        found = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, found, incremental_html(found))
    write_json(json, msgspec.to_builtins(found))
    if quiet:
        return
    print_comparison(incremental_comparison(found))
    typer.echo(f"Report: {page}")
