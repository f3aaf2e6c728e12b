"""`wirewise run gnn-tasks`: placements of the tasks of GNN training, carried out next to each other."""

from __future__ import annotations

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
from wirewise.cli.task_options import Tasks, chosen_tasks
from wirewise.recipes.gnn_tasks_job import Wish

__all__ = ["gnn_tasks"]


@with_options
def gnn_tasks(
    wish: Wish,
    tasks: Given[Tasks],
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Place the tasks of GNN training, and carry the placements out in the lab next to rules (Luo, Bao, Wu).

    Links, TCP and bytes are real. Computing is emulated: a task sleeps its time.
    """
    from wirewise.recipes import gnn_tasks as recipe
    from wirewise.report.placement_page import placement_comparison, placement_html

    quiet = json == "-"
    with run_folder(out, "gnn-tasks") as folder:
        placed = recipe.make_job(wish, chosen_tasks(tasks, wish.names, wish.seed))
        found = recipe.run(placed, folder, lambda text: typer.echo(text, err=quiet))
        result = recipe.summarise(placed, found)
        page = save_result(folder, result, placement_html(result, placed.plans))
    write_json(json, msgspec.to_builtins(result))
    if not quiet:
        print_comparison(placement_comparison(result))
        typer.echo(f"Plan: {recipe.plan_file(folder, result.fastest)}, report: {page}")
