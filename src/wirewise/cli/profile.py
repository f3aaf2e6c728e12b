"""`wirewise profile`: record a training job, and measure where its time stalls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wirewise.cli.output import JsonOption, print_text, write_out
from wirewise.cli.profile_stages import stages
from wirewise.cli.stalls import recommend, stalls
from wirewise.errors import InputError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Record a training job, or measure where its time stalls.")

_COMMAND = {"allow_interspersed_args": False}


app.command(context_settings=_COMMAND)(stalls)
app.command()(recommend)
app.command()(stages)


@app.command(context_settings=_COMMAND)
def trace(
    command: Annotated[list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that takes a file of each rank.")],
    warmup: Annotated[int, typer.Option(min=0, help="Warm-up steps, which are not recorded.")] = 5,
    steps: Annotated[int, typer.Option(min=0, help="Steps to record after the warm-up; 0: all.")] = 30,
    every: Annotated[int, typer.Option(min=1, help="Record every n-th step.")] = 1,
    json: JsonOption = None,
) -> None:
    """Record every rank of an unmodified training command; exits with the command's code.

    On several hosts, start it on each, with the same folder and torchrun's --nnodes and --node-rank.
    """
    from wirewise.trials.inside import Record
    from wirewise.trials.recorded import record_command
    from wirewise.trials.start import hosts_of_command, start_command

    task = Record(folder=str(out.resolve()), warmup=warmup, steps=steps or None, every=every)
    output = sys.stderr if json == "-" else None
    record = record_command(command, start_command(command), out, task, output)
    record["hosts"] = hosts_of_command(command)
    code = record["exit_code"]
    if "steps" in record:
        size = record["size_bytes"] / 1e6
        write_out(
            json,
            record,
            f"Recorded {len(record['steps'])} steps of {record['ranks']} ranks, {size:.1f} MB, in {out}.",
            *(f"Note: {note}." for note in record["notes"]),
            f"What bounds a step: wirewise trace show {out}",
        )
    if code:
        print_text(f"wirewise: the command ended with exit code {code}", err=True)
    raise typer.Exit(code if code >= 0 else 128 - code)


@app.command()
def operators(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File of weights (.npz), for plan fusion --graph.")
    ],
    samples: Annotated[Path, typer.Option(help="Output file; measurements already in it are kept.")] = Path(
        "fused-operators.jsonl"
    ),
    structures: Annotated[
        int, typer.Option(min=8, help="Fused operators to compile; each takes some seconds.")
    ] = 300,
    sizes: Annotated[int, typer.Option(min=2, help="Sizes at which each is measured.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs over the measurements.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the fused operators.")] = 0,
    json: JsonOption = None,
) -> None:
    """Fit DisCo's cost estimator to this machine: compile random fused operators, measure them, train.

    Training starts from the weights that ship with wirewise. A quarter of the structures is held out to report the
    estimation error.
    """
    from wirewise.planners.fusion.disco.estimator import load_shipped
    from wirewise.trials.operators import (
        accuracy,
        collect,
        fit_estimator,
        read_samples,
        split,
        to_region_graph,
    )

    for found in collect(samples, seed=seed, structures=structures, sizes=sizes):
        if json != "-":
            print_text(
                f"{found[0].source}: {len(found[0].operators)} operators at {len(found)} sizes", err=True
            )
    known, kept = split(read_samples(samples))
    if not known or not kept:
        raise InputError(
            f"{samples} holds too few structures to learn and to test; ask for more --structures"
        )
    estimator = fit_estimator(known, epochs=epochs, start=load_shipped())
    tried = accuracy([estimator.seconds(to_region_graph(one)) for one in kept], kept)
    estimator.save(out)
    write_out(
        json,
        {"weights": str(out), "machine": estimator.about.machine, **tried._asdict()},
        f"Learned from {len(known)} fused operators on {estimator.about.machine}. Of {tried.samples} others of "
        f"unseen structures {tried.within_20:.0%} are predicted within 20 %, the median within {tried.median:.0%}; "
        f"rank correlation {tried.order:.3f}. Weights: {out}.",
    )
