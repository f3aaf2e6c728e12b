"""`wirewise slurm`: batch scripts for sbatch, and the environment of ranks started by srun."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from wirewise.cli.options import with_options
from wirewise.cli.output import note
from wirewise.errors import InputError
from wirewise.trials.slurm_script import SlurmScript, batch_script

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Slurm: print a file for sbatch, give a rank of srun its place.")

_COMMAND = {"allow_interspersed_args": False}


@app.command(context_settings=_COMMAND)
@with_options
def script(
    command: Annotated[
        list[str], typer.Argument(help="After --: wirewise ..., torchrun train.py, or a program.")
    ],
    script_options: SlurmScript,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File that takes it; stdout by default.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Give it to sbatch, too; needs --out.")] = False,
) -> None:
    """Print a batch script for sbatch that runs a command on several hosts.

    wirewise slurm script --hosts 4 -o job.sh -- wirewise run adaqp --out runs/first
    """
    from wirewise.cli.main import GROUPS

    if command[0] in GROUPS:
        raise InputError(f"{command[0]!r} is no program; expected `-- wirewise {' '.join(command)}`")
    text = batch_script(command, script_options)
    if submit and out is None:
        raise InputError("--submit needs --out FILE, the file that is submitted; name one")
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text)
    if not submit:
        note(f"To submit it: sbatch {out}")
        return
    try:
        raise typer.Exit(subprocess.run(["sbatch", str(out)], check=False).returncode)
    except OSError as error:
        raise InputError(
            f"sbatch cannot be run: {error.strerror}; put Slurm's commands on the path"
        ) from error


@app.command(context_settings=_COMMAND)
def rank(
    command: Annotated[
        list[str], typer.Argument(help="After --: the program of a rank, with its arguments.")
    ],
) -> None:
    """Set RANK, WORLD_SIZE, MASTER_ADDR and the like from srun's variables, then exec a program.

    srun wirewise slurm rank -- python train.py
    """
    from wirewise.hosts.allocation import adopt_srun_rank

    if not adopt_srun_rank():
        raise InputError(
            "this is no rank: neither srun nor another launcher has started it; start it as `srun wirewise slurm rank "
            f"-- {' '.join(command)}`"
        )
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise InputError(f"cannot start {command[0]!r}: {error.strerror}; check the command") from error
