"""`wirewise run salientpp`: mini-batch training over partitioned features, mode by mode."""

from __future__ import annotations

import msgspec
import typer

from wirewise.cli.options import with_options
from wirewise.cli.output import FolderOption, JsonOption, print_table, run_folder, save_result, write_json
from wirewise.recipes.salientpp_job import Job
from wirewise.report.figures import seconds, size
from wirewise.results import MiniBatchRun

__all__ = ["salientpp"]


@with_options
def salientpp(
    job: Job,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Mini-batch GNN training with cached remote features and a pipeline (SALIENT++), next to training without."""
    from wirewise.recipes import salientpp as recipe
    from wirewise.report.mini_batch_page import mini_batch_html

    quiet = json == "-"
    with run_folder(out, "salientpp") as folder:
        found = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, found, mini_batch_html(found))
    write_json(json, msgspec.to_builtins(found))
    if not quiet:
        _show(found)
        typer.echo(f"Report: {page}")


def _show(found: MiniBatchRun) -> None:
    rows = [
        [
            name,
            seconds(one.epoch_s),
            f"{one.speedup:.2f}x",
            seconds(one.predicted_s),
            one.binding,
            str(one.remote_rows),
            f"{one.hit_rate:.0%}",
            size(one.bytes_sent + one.sampling_bytes),
            "" if one.accuracy is None else f"{100 * one.accuracy:.1f}",
        ]
        for name, one in found.modes.items()
    ]
    titles = ["mode", "epoch", "speed", "model", "binds", "rows an epoch", "cached", "sent", "accuracy %"]
    print_table(titles, rows)
    if found.processors == "own":
        typer.echo(
            "Training is emulated: its steps were timed while no other machine computed, and are slept."
        )
    typer.echo(f"The plan expects the cache to leave {found.predicted_remaining:.1%} of the remote rows.")
