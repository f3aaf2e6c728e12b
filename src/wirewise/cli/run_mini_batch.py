"""`wirewise run salientpp`: mini-batch training over partitioned features, mode by mode."""

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
from wirewise.recipes.salientpp_job import Job

__all__ = ["salientpp"]


@with_options
def salientpp(
    job: Job,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Mini-batch GNN training with cached remote features and a pipeline (SALIENT++), next to training without."""
    from wirewise.recipes import salientpp as recipe
    from wirewise.report.mini_batch_page import mini_batch_comparison, mini_batch_html

    quiet = json == "-"
    with run_folder(out, "salientpp") as folder:
        found = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, found, mini_batch_html(found))
    write_json(json, msgspec.to_builtins(found))
    if not quiet:
        print_comparison(mini_batch_comparison(found))
        typer.echo(f"Report: {page}")
