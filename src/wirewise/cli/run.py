"""`wirewise run`: published systems as one command each."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from wirewise import units
from wirewise.cli import collectives, run_gradients, run_incremental, run_mini_batch, run_placement
from wirewise.cli.output import JsonOption, print_table, run_folder, write_json
from wirewise.cli.run_options import settings, words
from wirewise.errors import InputError, PeerError

if TYPE_CHECKING:
    from wirewise.recipes.adaqp import Progress
    from wirewise.recipes.job import Job
    from wirewise.results import RunResult

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Run a published system end to end and report what it gained.")
app.command()(collectives.collective)
app.command()(run_gradients.cupcake)
app.command()(run_mini_batch.salientpp)
app.command("sea-er")(run_incremental.sea_er)
app.command("gnn-tasks")(run_placement.gnn_tasks)


@app.callback()
def _group() -> None:
    """Keeps `run` a group while it has one command."""


@app.command()
def adaqp(
    ctx: typer.Context,
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
    checkpoint_every: Annotated[
        int, typer.Option(help="Epochs between checkpoints of a mode; 0 writes none.")
    ] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a silent rank ends the job.")] = 120.0,
    out: Annotated[Path | None, typer.Option(help="Folder of parts, logs, result and report.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Folder of a stopped run: go on from its checkpoints, with its settings."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Full-graph GNN training with adaptively quantized messages (AdaQP), next to full precision."""
    from wirewise import report
    from wirewise.recipes import adaqp as recipe
    from wirewise.recipes.job import Job

    own = {"links": units.parse_links(links), "modes": words(modes)}
    given = settings(ctx, Job, hosts=workers if hosts is None else hosts, **own)
    job = Job(**given) if resume is None else _stopped_job(ctx, given, resume)
    quiet = json is not None and str(json) == "-"
    with run_folder(resume or out, "adaqp") as folder:
        result = _run(job, folder, report.TrainingProgress(to_stderr=quiet), resume=resume is not None)
        page = folder / "report.html"
        report.write_page(report.page_html(result, recipe.saved_plan(folder, job)), page)
    if not quiet:
        report.print_result(result)
        typer.echo(f"Report: {page}")
    write_json(json, report.to_json_object(result))


@app.command(context_settings={"allow_interspersed_args": False})
def dpro(
    command: Annotated[list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of traces, plan and report.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Steps of a run that do not count.")] = 5,
    steps: Annotated[int, typer.Option(min=2, help="Steps of a run that count.")] = 30,
    pairs: Annotated[int, typer.Option(min=2, help="Runs under the plan, each next to one without it.")] = 4,
    planner: Annotated[
        str, typer.Option("--with", help="Planner: dpro, mcmc, exhaustive, rules, ddp.")
    ] = "dpro",
    time_budget: Annotated[float, typer.Option(help="Seconds for the search.")] = 60.0,
    json: JsonOption = None,
) -> None:
    """Record a training command, replay it, plan its gradient buckets, and measure the plan (dPRO)."""
    from wirewise.recipes import dpro as recipe
    from wirewise.report.replay_page import replay_html
    from wirewise.report.shell import write_page

    wish = recipe.Wish(warmup=warmup, steps=steps, pairs=pairs, planner=planner, time_budget_s=time_budget)
    quiet = json == "-"
    with run_folder(out, "dpro") as folder:
        result, analysis, trace = recipe.run(command, folder, wish, lambda text: typer.echo(text, err=quiet))
        page = folder / "report.html"
        write_page(replay_html(trace, analysis), page)
    write_json(json, msgspec.to_builtins(result))
    if quiet:
        return
    rows = [
        ["recorded, replayed", f"{result.measured_step_s * 1e3:.1f} ms, {result.error:+.1%}"],
        ["saved by the plan, simulated", f"{result.predicted_gain:.1%} of a step"],
        ["saved by the plan, measured", f"{result.gain:.1%} ({result.ci95[0]:.1%} to {result.ci95[1]:.1%})"],
        ["keep it", "yes" if result.kept else "no: the gain is not above its interval"],
    ]
    print_table(["", ""], rows)
    typer.echo(f"Plan: {result.plan}, report: {page}")


def _stopped_job(ctx: typer.Context, wanted: dict[str, Any], folder: Path) -> Job:
    """The job of a stopped run, checked against the options that were given beside its folder."""
    from wirewise.recipes import resuming

    options = {"timeout": "timeout_s"}
    given = {
        options.get(name, name)
        for name in ctx.params
        if (source := ctx.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }
    out = ctx.params["out"]
    if out is not None and out.resolve() != folder.resolve():
        raise InputError(
            f"--out is {out} and --resume is {folder}; a run goes on in its own folder, leave --out away"
        )
    return resuming.read_job(folder, {name: wanted[name] for name in wanted if name in given})


def _run(job: Job, folder: Path, progress: Progress, *, resume: bool) -> RunResult:
    """Run the recipe; where that is stopped and checkpoints lie there, say how to go on."""
    from wirewise.recipes import adaqp as recipe

    try:
        return recipe.run(job, folder, progress, resume=resume)
    except PeerError as error:
        raise PeerError(f"{error}{_way_on(folder)}") from error
    except KeyboardInterrupt:
        typer.echo(f"wirewise: stopped{_way_on(folder)}", err=True)
        raise


def _way_on(folder: Path) -> str:
    if not (folder / "checkpoints").is_dir():
        return ""
    # Needs torch, which takes seconds to import.
    from wirewise.recipes import resuming

    if not resuming.can_continue(folder):
        return ""
    return f". Go on from the last checkpoint: wirewise run adaqp --resume {shlex.quote(str(folder))}"
