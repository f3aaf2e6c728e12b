"""`wirewise run gnn-tasks`: placements of the tasks of GNN training, carried out next to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from wirewise.cli.options import Given, with_options
from wirewise.cli.output import FolderOption, JsonOption, print_table, run_folder, save_result, write_json
from wirewise.cli.task_options import Tasks, chosen_tasks
from wirewise.recipes.gnn_tasks_job import Wish
from wirewise.report.figures import seconds, size

if TYPE_CHECKING:
    from wirewise.results import PlacementRun

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
    from wirewise.report.placement_page import placement_html

    quiet = json == "-"
    with run_folder(out, "gnn-tasks") as folder:
        placed = recipe.make_job(wish, chosen_tasks(tasks, wish.names, wish.seed))
        found = recipe.run(placed, folder, lambda text: typer.echo(text, err=quiet))
        result = recipe.summarise(placed, found)
        page = save_result(folder, result, placement_html(result, placed.plans))
    write_json(json, msgspec.to_builtins(result))
    if not quiet:
        _tell(result)
        typer.echo(f"Plan: {recipe.plan_file(folder, result.fastest)}, report: {page}")


def _tell(result: PlacementRun) -> None:
    rows = [
        [
            name,
            seconds(one.measured_s),
            f"{one.measured_gain:+.1%}",
            seconds(one.simulated_s),
            f"{one.simulated_gain:+.1%}",
            f"{one.error:+.1%}",
            seconds(one.lower_bound_s),
            size(one.crossing_bytes),
        ]
        for name, one in result.plans.items()
    ]
    titles = ["plan", "measured", "saved", "simulated", "saved", "error", "lower bound", "between hosts"]
    print_table(titles, rows)
    typer.echo(f"Seconds and bytes are those of an iteration. Emulated: {result.emulated}.")
