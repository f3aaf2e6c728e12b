"""Commands that start the ranks of a job on its hosts, by torchrun or directly, and networks of such hosts."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self, Unpack

from wirewise.errors import LabError
from wirewise.hosts.job import JobOptions, JobResult, Process, RunningJob
from wirewise.hosts.ports import free_port
from wirewise.hosts.variables import interface_variables, rank_variables

__all__ = [
    "LAUNCHERS",
    "Command",
    "HostNetwork",
    "Loopback",
    "Rendezvous",
    "check_command",
    "job_processes",
    "rank_commands",
    "split_commands",
]

LAUNCHERS = ("torchrun", "direct", "none")
Command = Sequence[str] | Sequence[Sequence[str]]
"""A command for all hosts, or a list of one for each."""


class Rendezvous(NamedTuple):
    """Host's position in a job, and the address where ranks meet."""

    host: int
    num_hosts: int
    interface: str
    """Network interface for traffic between ranks."""
    master_address: str
    master_port: int

    def variables(self, local: int, per_host: int) -> dict[str, str]:
        """Environment variables of a rank of the host, which has `per_host` ranks."""
        return rank_variables(
            self.host * per_host + local,
            self.num_hosts * per_host,
            self.master_address,
            self.master_port,
            local_rank=local,
            local_world_size=per_host,
            host=self.host,
        )


def rank_commands(
    rendezvous: Rendezvous, command: Sequence[str], *, per_host: int, launcher: str
) -> list[tuple[list[str], dict[str, str]]]:
    """Build the commands to start on one host, each with its environment variables.

    Args:
        rendezvous: Host that starts them.
        command: Arguments of `torchrun`, or a whole command for the launcher "none".
        per_host: Ranks on each host.
        launcher: "torchrun": one process that starts the ranks. "direct": the ranks themselves, with the variables
            that torchrun would set, which saves a second import of torch on each host. "none": the command unchanged.

    Raises:
        LabError: The launcher is unknown, the command empty or the number of ranks below one.
    """
    check_command(command, per_host, launcher)
    common = interface_variables(rendezvous.interface) | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "WIREWISE_HOST": str(rendezvous.host),
    }
    if launcher == "none":
        return [(list(command), common)]
    if launcher == "torchrun":
        flags = [
            f"--nnodes={rendezvous.num_hosts}",
            f"--node-rank={rendezvous.host}",
            f"--nproc-per-node={per_host}",
            f"--master-addr={rendezvous.master_address}",
            f"--master-port={rendezvous.master_port}",
        ]
        return [([sys.executable, "-m", "torch.distributed.run", *flags, *command], common)]
    return [
        ([sys.executable, *command], common | rendezvous.variables(local, per_host))
        for local in range(per_host)
    ]


def check_command(command: Sequence[str], per_host: int, launcher: str) -> None:
    """Raise if a command cannot be started as ranks; arguments and errors as in `rank_commands`."""
    if not command:
        raise LabError("got an empty command; expected a script or -m module, with its arguments")
    if per_host < 1:
        raise LabError(f"got {per_host} processes per host; expected at least 1")
    if launcher not in LAUNCHERS:
        raise LabError(f"unknown launcher {launcher!r}; expected one of {', '.join(LAUNCHERS)}")


def split_commands(command: Command, hosts: int) -> list[list[str]]:
    """Normalise to one command per host, from one command for all hosts or a list.

    Raises:
        LabError: The number of commands is not that of the hosts.
    """
    alike = all(isinstance(word, str) for word in command)
    commands = [[str(word) for word in words] for words in ([command] if alike else command)]
    if not alike and len(commands) != hosts:
        raise LabError(f"got commands for {len(commands)} hosts; expected {hosts}, or one command for all")
    return commands


class HostNetwork(ABC):
    """Context manager of hosts on which ranks are started: of a lab, of Slurm, or this machine alone."""

    network: ClassVar[str]
    """Name of the kind of network, as in options."""
    num_hosts: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def address(self, host: int) -> str:
        """Address or name by which other hosts reach a host."""

    @abstractmethod
    def launch(
        self,
        command: Command,
        *,
        processes_per_host: int = 1,
        launcher: str = "torchrun",
        **options: Unpack[JobOptions],
    ) -> RunningJob:
        """Start one job over all hosts.

        Args:
            command: Arguments of `torchrun`: a script or `-m module`, and arguments; or one such list for each host.
            processes_per_host: Ranks on each host.
            launcher: "torchrun" starts torchrun on each host; "direct" starts the ranks themselves with the variables
                that torchrun would set, which saves importing torch twice; "none" starts the command unchanged.
            options: Further arguments of `RunningJob`.

        Raises:
            LabError: The launcher is unknown, a command is empty, or the number of commands is not that of the hosts.
        """

    def run(self, command: Command, **options: Any) -> JobResult:
        """Run one job over all hosts and wait for its end; arguments and errors as in `launch`."""
        return self.launch(command, **options).wait()


class Loopback(HostNetwork):
    """Ranks of a job on this machine without traffic shaping; the labelled fallback if no lab can be built.

    Args:
        hosts: Number of hosts to stand in for.
    """

    network = "loopback"

    def __init__(self, hosts: int = 1) -> None:
        self.num_hosts = hosts

    def address(self, host: int) -> str:
        """Address by which other hosts reach a host."""
        return "127.0.0.1"

    def launch(
        self,
        command: Command,
        *,
        processes_per_host: int = 1,
        launcher: str = "torchrun",
        **options: Unpack[JobOptions],
    ) -> RunningJob:
        """Start one job; arguments and errors as in `HostNetwork.launch`."""
        place = Rendezvous(0, self.num_hosts, "lo", self.address(0), free_port(self.address(0)))
        return RunningJob(
            job_processes(place, command, per_host=processes_per_host, launcher=launcher), **options
        )


def job_processes(first: Rendezvous, command: Command, *, per_host: int, launcher: str) -> list[Process]:
    """Build the processes of a job on all hosts; arguments and errors as in `HostNetwork.launch`.

    Args:
        first: Position of host 0.
        command: Command for all hosts, or a list of one for each.
        per_host: Ranks on each host.
        launcher: "torchrun", "direct" or "none".
    """
    commands = split_commands(command, first.num_hosts)
    return [
        Process(host, argv, variables)
        for host in range(first.num_hosts)
        for argv, variables in rank_commands(
            first._replace(host=host), commands[host % len(commands)], per_host=per_host, launcher=launcher
        )
    ]
