"""Launch of the ranks of a job in a lab, on loopback or by a user's command, and their outcome."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from wirewise import lab
from wirewise.decoding import decode_json
from wirewise.errors import InputError, LabError, PeerError
from wirewise.files import write_json
from wirewise.hosts.allocation import current_allocation, is_single_process, started_by_srun
from wirewise.hosts.slurm import SlurmHosts, needed_allocation
from wirewise.trials.joint_start import joint_start
from wirewise.trials.last_words import failure_reason, last_lines
from wirewise.trials.log import LineReader, Text

__all__ = [
    "JOB",
    "OUTCOME",
    "Hosts",
    "Launch",
    "Network",
    "choose_network",
    "expect_one_host",
    "find_program",
    "hosts_of_command",
    "open_network",
    "parse_command",
    "run_command",
    "run_on",
    "run_ranks",
    "start_command",
]

T = TypeVar("T")

Hosts = lab.Lab | SlurmHosts
Network = Hosts | lab.Loopback

JOB = "job.json"
"""File in the folder of a job with its settings, written by the parent."""
OUTCOME = "outcome.json"
"""File in the folder of a job with what all ranks measured, written by rank 0."""


def choose_network(
    network: str, *, slurm: bool = True, shaped: bool = True, loopback: bool = True
) -> tuple[str, list[str]]:
    """Resolve "auto"; returns the network and notes about it for the user.

    Inside a Slurm allocation the result is "slurm", elsewhere "lab", or "loopback" if no lab can be built.

    Args:
        network: Network that was requested.
        slurm: Whether "auto" may be "slurm".
        shaped: Whether "auto" may be "lab", whose links are shaped.
        loopback: Whether "auto" may be "loopback"; otherwise an unavailable lab is an error when it is opened.

    Raises:
        InputError: "slurm" was requested without an allocation, or with one of a single host.
        LabError: "lab" was requested and cannot be built.
    """
    if network == "slurm" or (slurm and network == "auto" and current_allocation() is not None):
        found = needed_allocation()
        return "slurm", [f"The workers ran on hosts of Slurm's job {found.job}: {', '.join(found.hosts)}."]
    if network == "loopback" or not shaped:
        return "loopback", ["The workers talked over loopback, which no link shapes."]
    ok, reason = lab.available()
    if ok or not loopback:
        return "lab", []
    if network == "lab":
        raise LabError(f"no lab here: {reason}. Use --network loopback, or mend what is missing")
    return "loopback", [f"No lab here ({reason}): the workers talked over loopback, which no link shapes."]


def expect_one_host(command: str, instead: str) -> None:
    """Raise if a single-machine command was started for all hosts of an allocation.

    Args:
        command: The command, as in "profile stalls".
        instead: Alternative, for the error message.

    Raises:
        InputError: The allocation has several hosts; the message names them, and the command that runs on one of them.
    """
    found = current_allocation()
    if found is not None and len(found.hosts) > 1 and not is_single_process():
        raise InputError(
            f"`wirewise {command}` starts its ranks on one machine, and allocation {found.job} has {len(found.hosts)} "
            f"hosts: {', '.join(found.hosts)}; run it on one of them, as `srun -N1 -n1 wirewise {command} ...`, or "
            f"{instead}"
        )


def open_network(
    network: str,
    hosts: int,
    link: str | Sequence[str],
    links: Mapping[int, str] | None = None,
    *,
    advice: str = "`wirewise doctor` says more",
) -> Network:
    """Open a network for launching ranks.

    Args:
        network: "lab", "slurm" for hosts of the allocation that this runs in, or "loopback", where no link shapes what
            the ranks send.
        hosts: Number of hosts of the lab, or of the allocation's to use.
        link: Rate of each host's link in the lab, or one for all.
        links: Rates of single hosts that differ.
        advice: Remedy if no lab can be built, for the error message.

    Raises:
        InputError: The allocation has too few hosts, or rates are for another number of hosts.
        LabError: No lab can be built here.
    """
    if network == "slurm":
        return SlurmHosts(hosts)
    if network == "loopback":
        return lab.Loopback()
    possible, reason = lab.available()
    if not possible:
        raise LabError(f"no lab here: {reason}; {advice}")
    if not isinstance(link, str):
        if len(link) != hosts:
            raise InputError(
                f"got {len(link)} links for {hosts} hosts; expected one for each host, or one for all"
            )
        link, links = link[0], dict(enumerate(link))
    return lab.Lab(hosts, link, links)


def run_on(network: Network, command: Sequence[str], ranks: int, **options: Any) -> lab.JobResult:
    """Run a command as the ranks of one job until it ends.

    Args:
        network: Entered network; its hosts take an equal share of the ranks.
        command: Command for `HostNetwork.launch`.
        ranks: Number of ranks.
        **options: Further options of `HostNetwork.launch`.
    """
    return network.run(command, processes_per_host=ranks // network.num_hosts, **options)


def run_ranks(
    module: str,
    folder: Path,
    outcome: type[T],
    *,
    network: Network,
    ranks: int,
    job: object = None,
    log: Callable[[str], None] = lambda _: None,
    report: Callable[[bytes], None] = lambda _: None,
    arguments: Sequence[str] = (),
) -> T:
    """Run `-m MODULE FOLDER` as the ranks of a job and return what rank 0 wrote as its outcome.

    Args:
        module: Worker, which `trials.rank.main` runs.
        folder: Existing folder for the job, the logs and the outcome.
        outcome: Type of the outcome.
        network: Entered network that connects the ranks.
        ranks: Number of ranks.
        job: Settings that every rank reads. None if the folder holds them already.
        log: Called with each log text of rank 0.
        report: Called with each intermediate record of rank 0, as JSON.
        arguments: Further arguments of the worker.

    Raises:
        PeerError: A rank failed; the message quotes the end of its output and names the folder of the logs.
    """
    reader = LineReader()

    def listener(_host: int, line: str) -> None:
        told = reader.read(line)
        if isinstance(told, Text):
            log(told.text)
        elif told is not None:
            report(bytes(told.record))

    if job is not None:
        write_json(folder / JOB, job)
    (folder / OUTCOME).unlink(missing_ok=True)
    logs = folder / "logs"
    command = ["-m", module, str(folder), *arguments]
    result = run_on(network, command, ranks, launcher="direct", folder=logs, listener=listener)
    if not result.ok:
        raise PeerError(failure_reason(result, logs))
    return decode_json((folder / OUTCOME).read_bytes(), outcome)


def run_command(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    result: Path | None = None,
    label: str = "",
    limit_s: float | None = None,
) -> None:
    """Run a user's command until it ends, with its output in a file.

    Args:
        command: Program and arguments, such as torchrun train.py.
        log: File for all output.
        environment: All variables of the command.
        result: File that the ranks write; removed first if it exists.
        label: Description of the preceding work, for the error message.
        limit_s: Longest run, in seconds. Defaults to no limit.

    Raises:
        InputError: The program does not exist.
        PeerError: The command failed, ended without the result, or ran for longer than the limit; the message holds
            its last lines.
    """
    argv = start_command(command)
    if result is not None:
        result.unlink(missing_ok=True)
    with log.open("wb") as file:
        try:
            code = lab.run_owned(
                argv, environment=environment, silent=True, output=file, errors=file, limit_s=limit_s
            )
            ended = f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            code, ended = 1, f"was ended after {limit_s:.0f} s"
    if code or (result is not None and not result.exists()):
        before = f" before {label}" if label else ""
        lines = log.read_text(errors="replace").splitlines()
        raise PeerError(f"the command {ended}{before}; its log is {log}, and ends:\n{last_lines(lines)}")


def start_command(command: Sequence[str]) -> list[str]:
    """Command line to launch a user's command; single-machine torchrun runs on each host of an allocation.

    Raises:
        InputError: The program does not exist, or the allocation has one host.
    """
    if not _on_all_hosts(command):
        return [find_program(command[0]), *command[1:]]
    launch = parse_command(list(command))
    with SlurmHosts() as hosts:
        return hosts.argv(launch.arguments, launch.ranks, "torchrun")


def hosts_of_command(command: Sequence[str]) -> int:
    """Number of hosts on which `start_command` runs a command.

    Raises:
        InputError: The program does not exist, or the allocation has one host.
    """
    return len(needed_allocation().hosts) if _on_all_hosts(command) else 1


def _on_all_hosts(command: Sequence[str]) -> bool:
    torchrun = Path(find_program(command[0])).name == "torchrun" or list(command[1:3]) == [
        "-m",
        "torch.distributed.run",
    ]
    # One that names several hosts may have been started on each of them.
    on_each = started_by_srun() and joint_start(command, os.environ) is not None
    return torchrun and not on_each and current_allocation() is not None


def find_program(name: str) -> str:
    """Path of a program; torchrun and python fall back to those of this interpreter.

    Raises:
        InputError: The program does not exist.
    """
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise InputError(f"there is no program {name!r}; expected a command such as torchrun train.py")
    return found


@dataclass(frozen=True)
class Launch:
    """Parsed training command that can be launched with other ranks and hosts."""

    arguments: list[str]
    """Arguments of torchrun (a script or -m module, and its arguments), or the whole command without torchrun."""
    ranks: int
    torchrun: bool


def parse_command(command: list[str]) -> Launch:
    """Parse `torchrun ... train.py` or `python [-m torch.distributed.run ...] train.py`.

    Raises:
        InputError: The program does not exist, or the torchrun command names several machines or no script.
    """
    program = find_program(command[0])
    if Path(program).name == "torchrun":
        return _torchrun(command[1:])
    if command[1:3] == ["-m", "torch.distributed.run"]:
        return _torchrun(command[3:])
    return Launch([program, *command[1:]], 1, torchrun=False)


def _torchrun(words: list[str]) -> Launch:
    from torch.distributed.run import determine_local_world_size, get_args_parser

    try:
        options = get_args_parser().parse_args(words)
    except SystemExit as error:
        raise InputError(
            f"torchrun does not understand {' '.join(words)!r}; expected its options and a script"
        ) from error
    if str(options.nnodes) not in ("1", "1:1"):
        raise InputError(
            f"the command asks for --nnodes={options.nnodes}; give the command of one machine with all ranks, "
            "and --hosts or --network-command for several"
        )
    module = ["-m"] if options.module else []
    arguments = [*module, options.training_script, *options.training_script_args]
    return Launch(arguments, determine_local_world_size(options.nproc_per_node), torchrun=True)
