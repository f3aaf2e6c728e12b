"""Generator of sbatch files: hosts, ranks, time limit, and launch of the command's ranks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from wirewise import options as opt
from wirewise.errors import InputError

__all__ = ["SlurmScript", "batch_script"]

_NEED_RANKS = (("topo", "probe"), ("bench",), ("run", "collective"))
"""Commands of wirewise that ranks execute together; others start their ranks themselves."""
_TORCHRUN_NAMES = (
    "--nnodes",
    "--nproc-per-node",
    "--nproc_per_node",
    "--standalone",
    "--node-rank",
    "--node_rank",
)
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")
_WORD = re.compile(r"[\w.,+-]+")


def _check_time(text: str) -> None:
    if not _TIME.fullmatch(text):
        raise InputError(
            f"{text!r} is no time of Slurm; expected minutes, such as 30, 12:00:00 or 1-12:00:00"
        )


def _check_word(text: str | None) -> None:
    # A line break would be a line of the file.
    if text is not None and not _WORD.fullmatch(text):
        raise InputError(f"{text!r} is no name for Slurm; expected letters, digits and . , + - _")


class SlurmScript(opt.Options, frozen=True, kw_only=True):
    """Resource requests of a batch job.

    Raises:
        InputError: A value is invalid.
    """

    hosts: Annotated[int, opt.about("Hosts of the job.", ge=1)] = 2
    ranks: Annotated[opt.Count, opt.about("Ranks on each host.", option="--ranks-per-host")] = 1
    cpus: Annotated[opt.Count, opt.about("Processors of each rank.", option="--cpus-per-rank")] = 1
    gpus: Annotated[opt.Natural, opt.about("GPUs of each host.", option="--gpus-per-host")] = 0
    time: Annotated[str, opt.about("Time limit, such as 30 or 1-12:00:00.", check=_check_time)] = "01:00:00"
    partition: Annotated[str | None, opt.about("Partition; none: Slurm's default.", check=_check_word)] = None
    requeue: Annotated[bool, opt.about("Requeue the job when a host fails or when it is preempted.")] = True
    keep: Annotated[
        bool,
        opt.about(
            "Keep the job running when a host dies (--no-kill of Slurm), for trainings that survive it.",
            option="--no-kill",
        ),
    ] = False
    name: Annotated[
        str | None, opt.about("Name of the job; none: that of the program.", check=_check_word)
    ] = None


def batch_script(command: Sequence[str], script_options: SlurmScript) -> str:
    """Generate an sbatch file.

    A command of wirewise that starts its ranks runs once, on the first host; torchrun on each host, with a rendezvous
    on the first; any other command runs once per rank, with the rank in its environment variables. A stopped `wirewise
    run adaqp` with `--out` and `--checkpoint-every` resumes when Slurm reruns the job.

    Args:
        command: Program and arguments.
        script_options: Hosts, ranks, and further requests.

    Raises:
        InputError: There is no command, or a torchrun command that names several machines itself.
    """
    if not command:
        raise InputError("no command was given; expected one after --, such as -- wirewise run adaqp")
    program = Path(command[0]).name
    name = script_options.name or (
        f"{program}-{command[2]}" if program == "wirewise" and len(command) > 2 else program
    )
    lines = [
        f"--job-name={name}",
        f"--nodes={script_options.hosts}",
        f"--ntasks-per-node={script_options.ranks}",
        f"--cpus-per-task={script_options.cpus}",
        *([f"--gpus-per-node={script_options.gpus}"] if script_options.gpus else []),
        *([f"--partition={script_options.partition}"] if script_options.partition else []),
        f"--time={script_options.time}",
        "--requeue" if script_options.requeue else "--no-requeue",
        *(["--no-kill"] if script_options.keep else []),
        "--output=%x-%j.log",
        "--open-mode=append",
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            "set -eu",
            "",
            *_body(command, script_options),
            "",
        ]
    )


def _body(command: Sequence[str], asked: SlurmScript) -> list[str]:
    words, program = shlex.join(command), Path(command[0]).name
    if program == "torchrun":
        return _torchrun(command, asked)
    if program == "wirewise" and not any(tuple(command[1 : 1 + len(own)]) == own for own in _NEED_RANKS):
        return [*_resumed(command), words]
    srun = f"srun --cpus-per-task={asked.cpus}{' --no-kill' if asked.keep else ''}"
    return [f"{srun} {words if program == 'wirewise' else f'wirewise slurm rank -- {words}'}"]


def _resumed(command: Sequence[str]) -> list[str]:
    """Lines that let a run with checkpoints go on where an earlier start of the same job was stopped."""
    words = [part for word in command for part in word.split("=", 1)]
    given = dict(pairwise(words))
    folder, json = given.get("--out"), given.get("--json")
    if list(command[1:3]) != ["run", "adaqp"] or folder is None or "--checkpoint-every" not in words:
        return []
    place, more = shlex.quote(folder), f" --json {shlex.quote(json)}" if json else ""
    return [
        f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -d {place}/checkpoints ]; then',
        f"    exec {shlex.quote(command[0])} run adaqp --resume {place}{more}",
        "fi",
    ]


def _torchrun(command: Sequence[str], asked: SlurmScript) -> list[str]:
    if named := [word for word in command[1:] if word.split("=")[0] in _TORCHRUN_NAMES]:
        raise InputError(
            f"the command says {named[0]!r} itself; leave it out, --hosts and --ranks-per-host say so: expected "
            "torchrun SCRIPT ..."
        )
    rendezvous = '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$port"'
    keep = " --no-kill" if asked.keep else ""
    return [
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "port=$((15000 + SLURM_JOB_ID % 15000))",
        f"srun --ntasks-per-node=1 --cpus-per-task={asked.ranks * asked.cpus}{keep} \\",
        f"    {shlex.quote(command[0])} --nnodes={asked.hosts} --nproc-per-node={asked.ranks} \\",
        f"    {rendezvous} \\",
        f"    {shlex.join(command[1:])}",
    ]
