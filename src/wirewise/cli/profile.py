"""`wirewise profile`: record a training job, measure where its time stalls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from wirewise.cli.output import JsonOption, write_json
from wirewise.cli.profile_operators import operators
from wirewise.cli.stalls import recommend, stalls
from wirewise.errors import TraceError
from wirewise.files import owns_folder

if TYPE_CHECKING:
    from wirewise.trials.inside import Record

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Record a training job, or measure where its time stalls.")

_COMMAND = {"allow_interspersed_args": False}


app.command(context_settings=_COMMAND)(stalls)
app.command()(recommend)
app.command()(operators)


@app.command(context_settings=_COMMAND)
def trace(
    command: Annotated[list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that takes a file of each rank.")],
    warmup: Annotated[int, typer.Option(min=0, help="Steps that are not recorded at first.")] = 5,
    steps: Annotated[int, typer.Option(min=0, help="Steps to record then; 0: all.")] = 30,
    every: Annotated[int, typer.Option(min=1, help="Period of recorded steps; 1: each one.")] = 1,
    json: JsonOption = None,
) -> None:
    """Record every rank of an unmodified training command; exit code of the command."""
    from wirewise.trials.inside import Record
    from wirewise.trials.start import find_program

    program = find_program(command[0])
    task = Record(folder=str(out.resolve()), warmup=warmup, steps=steps or None, every=every)
    quiet = json == "-"
    record = _record([program, *command[1:]], out, task, sys.stderr if quiet else None)
    code = record["exit_code"]
    write_json(json, record)
    if not quiet:
        size = record["size_bytes"] / 1e6
        typer.echo(
            f"Recorded {len(record['steps'])} steps of {record['ranks']} ranks, {size:.1f} MB, in {out}."
        )
        for note in record["notes"]:
            typer.echo(f"Note: {note}.")
        typer.echo(f"What bounds a step: wirewise trace show {out}")
    if code:
        typer.echo(f"wirewise: the command ended with exit code {code}", err=True)
    raise typer.Exit(code if code >= 0 else 128 - code)


@owns_folder
def _record(argv: Sequence[str], folder: Path, task: Record, output: IO[str] | None) -> dict[str, Any]:
    """Run the command with every rank recorded into `folder`; what it left there."""
    from wirewise.lab import run_owned
    from wirewise.trials.inside import environment

    for old in folder.glob("rank-*.jsonl"):
        old.unlink()
    code = run_owned(argv, environment=environment(task), output=output)
    return _recorded(folder.resolve(), code)


def _recorded(folder: Path, exit_code: int) -> dict[str, Any]:
    """What a finished command left; a message where it left nothing that can be used."""
    from wirewise.trace.files import read

    files = sorted(folder.glob("rank-*.jsonl"))
    failed = f" The command ended with exit code {exit_code}." if exit_code else ""
    if not files:
        raise TraceError(
            f"the command recorded nothing in {folder}: expected a script that calls torch.distributed's "
            f"init_process_group or steps a torch optimizer; add wirewise.profile.Tracer to it otherwise.{failed}"
        )
    try:
        found = read(folder)
    except TraceError as error:
        raise TraceError(f"{error}.{failed}") from error
    return {
        "folder": str(folder),
        "ranks": found.world_size,
        "steps": found.steps(),
        "size_bytes": sum(file.stat().st_size for file in files),
        "notes": found.notes,
        "exit_code": exit_code,
    }
