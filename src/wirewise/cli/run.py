"""`wirewise run`: published systems as one command each."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from wirewise.cli.output import JsonOption, write_json
from wirewise.errors import WirewiseError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Run a published system end to end and report what it gained.")


@app.callback()
def _group() -> None:
    """Keeps `run` a group while it has one command."""


@app.command()
def adaqp(
    dataset: Annotated[
        str, typer.Option(help="Dataset name (`wirewise data list`) or path of an .npz file.")
    ] = "debian",
    workers: Annotated[int, typer.Option(help="Ranks, one part of the graph each.")] = 4,
    hosts: Annotated[int | None, typer.Option(help="Hosts of the lab; by default one a worker.")] = None,
    link: Annotated[str, typer.Option(help="Rate of each host's link in the lab.")] = "200mbit",
    links: Annotated[str, typer.Option(help="Hosts whose rate differs: 2=50mbit,3=1gbit.")] = "",
    network: Annotated[
        str, typer.Option(help="lab, loopback, or auto: the lab where it can be had.")
    ] = "auto",
    epochs: Annotated[int, typer.Option(help="Training epochs of every mode.")] = 60,
    modes: Annotated[str, typer.Option(help="Modes to train, the reference first.")] = "fp32,adaqp",
    seed: Annotated[int, typer.Option(help="Seed of weights, dropout and rounding.")] = 0,
    model: Annotated[str, typer.Option(help="gcn or sage.")] = "sage",
    hidden: Annotated[int, typer.Option(help="Width of the hidden rows.")] = 128,
    layers: Annotated[int, typer.Option(help="Graph convolutions.")] = 3,
    dropout: Annotated[float, typer.Option(help="Probability of dropping a hidden value.")] = 0.5,
    norm: Annotated[bool, typer.Option(help="LayerNorm on hidden rows.")] = True,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.01,
    partition: Annotated[str, typer.Option(help="metis, metis-volume, random, ...")] = "metis",
    evaluate_every: Annotated[int, typer.Option(help="Epochs between evaluations.")] = 5,
    replan_every: Annotated[int, typer.Option(help="Epochs between decisions on bits.")] = 20,
    timeout: Annotated[float, typer.Option(help="Seconds after which a silent rank ends the job.")] = 120.0,
    out: Annotated[Path | None, typer.Option(help="Folder of parts, logs, result and report.")] = None,
    json: JsonOption = None,
) -> None:
    """Full-graph GNN training with adaptively quantized messages (AdaQP), next to full precision."""
    from wirewise import report
    from wirewise.files import make_folder
    from wirewise.recipes import adaqp as recipe
    from wirewise.recipes.job import Job, parse_links

    job = Job(
        dataset=dataset,
        workers=workers,
        hosts=workers if hosts is None else hosts,
        link=link,
        links=parse_links(links),
        network=network,
        epochs=epochs,
        modes=tuple(m.strip() for m in modes.split(",") if m.strip()),
        seed=seed,
        model=model,
        hidden=hidden,
        layers=layers,
        dropout=dropout,
        norm=norm,
        learning_rate=learning_rate,
        partition=partition,
        evaluate_every=evaluate_every,
        replan_every=replan_every,
        timeout_s=timeout,
    )
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = make_folder(out or Path("runs") / f"adaqp-{stamp}")
    quiet = json is not None and str(json) == "-"
    try:
        result = recipe.run(job, folder, report.TrainingProgress(to_stderr=quiet))
    except WirewiseError:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    page = folder / "report.html"
    report.write_html(result, page, plan=recipe.saved_plan(folder, job))
    if not quiet:
        report.print_result(result)
        typer.echo(f"Report: {page}")
    write_json(json, report.to_json_object(result))
