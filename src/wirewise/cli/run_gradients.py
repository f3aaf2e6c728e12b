"""`wirewise run cupcake`: plans of compressed gradients, measured next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wirewise.cli.options import Given, with_options
from wirewise.cli.output import FolderOption, JsonOption, print_table, run_folder, save_result, write_json
from wirewise.recipes.cupcake_job import Job
from wirewise.report.figures import seconds, size

if TYPE_CHECKING:
    from wirewise.results import CompressionRun

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
    from wirewise.report.gradients_page import gradients_html

    job = recipe.make_job(trace, **given.values)
    quiet = json == "-"
    with run_folder(out, "cupcake") as folder:
        result = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, result, gradients_html(result))
    write_json(json, msgspec.to_builtins(result))
    if not quiet:
        _tell(result)
        typer.echo(f"Report: {page}")


def _tell(result: CompressionRun) -> None:
    rows = [
        [
            name,
            seconds(plan.step_s),
            seconds(plan.predicted_step_s),
            f"{plan.error:+.1%}",
            str(len(plan.groups)),
            size(plan.payload_bytes),
            "-" if plan.bytes_sent is None else size(plan.bytes_sent),
        ]
        for name, plan in result.plans.items()
    ]
    print_table(["plan", "step", "predicted", "error", "groups", "payload a step", "sent a step"], rows)
    typer.echo(f"{result.fastest} is the fastest ({result.emulated}).")
