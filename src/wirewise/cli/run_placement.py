"""`wirewise run gnn-tasks`: placements of the tasks of GNN training, carried out next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wirewise import units
from wirewise.cli import task_options as options
from wirewise.cli.output import JsonOption, print_table, run_folder, write_json
from wirewise.cli.run_options import save_result, settings, words
from wirewise.report.figures import seconds, size

if TYPE_CHECKING:
    from wirewise.results import PlacementRun

__all__ = ["gnn_tasks"]


def gnn_tasks(
    ctx: typer.Context,
    job: options.JobOption = None,
    dataset: options.DatasetOption = None,
    hosts: Annotated[int, typer.Option(help="Hosts of the lab, host0, host1 and so on.")] = 4,
    link: Annotated[str, typer.Option(help="Rate of each host's link in the lab.")] = "100mbit",
    links: Annotated[str, typer.Option(help="Hosts whose rate differs: 2=50mbit,3=1gbit.")] = "",
    methods: Annotated[
        str,
        typer.Option(help="gnn-tasks, colocated, store-affine, random; the first is compared with."),
    ] = "colocated,store-affine,gnn-tasks",
    policies: Annotated[
        str,
        typer.Option(help="Orders of flows that each method is carried out under: iter, oes, fifo, maxmin."),
    ] = "iter,oes",
    steps: Annotated[int, typer.Option(help="Placements that the search of gnn-tasks tries.")] = 1000,
    turns: Annotated[int, typer.Option(help="How often each plan is carried out; plans take turns.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of partition, draws and searches.")] = 0,
    fanouts: options.FanoutsOption = "15,10,5",
    batch_size: options.BatchSizeOption = 64,
    workers_per_host: options.WorkersOption = 1,
    samplers: options.SamplersOption = 2,
    servers: options.ServersOption = 1,
    room: options.RoomOption = None,
    hidden: options.HiddenOption = 256,
    iterations: options.IterationsOption = 8,
    sampler_s: options.SamplerSecondsOption = 0.005,
    worker_s: options.WorkerSecondsOption = 0.02,
    parts: options.PartsOption = "metis",
    volumes: options.VolumesOption = "drawn",
    timeout: Annotated[float, typer.Option(help="Seconds after which a silent host ends the job.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of plans, logs, result and report.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Place the tasks of GNN training, and carry the placements out in the lab next to rules (Luo, Bao, Wu).

    Links, TCP and bytes are real. Computing is emulated: a task sleeps its time.
    """
    from wirewise.recipes import gnn_tasks as recipe
    from wirewise.report.placement_page import placement_html

    own = {"links": units.parse_links(links), "methods": words(methods), "policies": words(policies)}
    wish = recipe.Wish(**settings(ctx, recipe.Wish, **own))
    quiet = json == "-"
    with run_folder(out, "gnn-tasks") as folder:
        placed = recipe.make_job(wish, options.chosen_tasks(ctx, wish.names))
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
