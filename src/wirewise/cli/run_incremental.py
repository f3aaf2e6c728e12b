"""`wirewise run sea-er`: rehearsal of old vertices while a graph grows, method by method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise.cli.output import JsonOption, print_table, run_folder, write_json
from wirewise.cli.run_options import save_result, settings, words
from wirewise.report.figures import seconds

__all__ = ["sea_er"]


def sea_er(
    ctx: typer.Context,
    dataset: Annotated[
        str, typer.Option(help="Dataset name (`wirewise data list`) or path of an .npz file.")
    ] = "debian",
    methods: Annotated[
        str,
        typer.Option(
            help="bare, er-random, er-cm, er-mf, herding, k-centre, coverage, er-random+kmm, coverage+kmm, sea-er, "
            "gem, ewc, lwf, ssrm, joint."
        ),
    ] = "bare,er-random,coverage,sea-er,joint",
    budget: Annotated[int, typer.Option(help="Vertices of each class that are kept.")] = 5,
    setting: Annotated[
        str, typer.Option(help="task: only the classes of a vertex's task compete; class: all so far.")
    ] = "task",
    growth: Annotated[
        str,
        typer.Option(help="inductive: later vertices bring edges to earlier ones; separate; transductive."),
    ] = "inductive",
    classes_per_task: Annotated[int, typer.Option(help="That arrive together, in label order.")] = 2,
    smallest_class: Annotated[int, typer.Option(help="Leave out classes with fewer vertices.")] = 50,
    tasks: Annotated[int | None, typer.Option(min=1, help="Stop after so many; by default all.")] = None,
    epochs: Annotated[int, typer.Option(help="Of each task.")] = 30,
    hidden: Annotated[int, typer.Option(help="Width of the hidden rows.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.005,
    decay: Annotated[
        str, typer.Option(help="Of weights: decoupled from Adam's steps, or l2 as in the published protocol.")
    ] = "decoupled",
    mixing: Annotated[
        str, typer.Option(help="sum: each old task weighs as much as the new one; mean: all together do.")
    ] = "sum",
    kernel: Annotated[str, typer.Option(help="Of matched weights: rbf or linear.")] = "rbf",
    most_weight: Annotated[float, typer.Option(help="Largest matched weight of a vertex.")] = 3.0,
    workers: Annotated[int, typer.Option(help="Processes, a part of the vertices each.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the split, the weights and the lots.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a silent worker ends the job.")] = 120.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of result, page and logs.")] = None,
    json: JsonOption = None,
) -> None:
    """Learn the tasks of a growing graph with rehearsal of old vertices (SEA-ER), next to other methods."""
    from wirewise.recipes import sea_er as recipe
    from wirewise.report.incremental_page import incremental_html
    from wirewise.runtime.incremental import Settings

    learning = Settings(**settings(ctx, Settings, most=most_weight))
    own = settings(ctx, recipe.Job, methods=words(methods), fewest=smallest_class, most_tasks=tasks)
    job = recipe.Job(**own, settings=learning)
    quiet = json == "-"
    with run_folder(out, "sea-er") as folder:
        found = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, found, incremental_html(found))
    write_json(json, msgspec.to_builtins(found))
    if quiet:
        return
    rows = [
        [name, f"{100 * one.ap:.1f}", f"{100 * one.af:+.1f}", seconds(one.seconds)]
        for name, one in found.methods.items()
    ]
    print_table(["method", "AP %", "AF %", "time"], rows)
    typer.echo(f"Report: {page}")
