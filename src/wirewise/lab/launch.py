"""Commands and variables that start the ranks of a job on its hosts, and a lab's interface without a network."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Self, Unpack

from wirewise.errors import LabError
from wirewise.hosts import free_port
from wirewise.lab.job import JobOptions, JobResult, Process, RunningJob

__all__ = ["LAUNCHERS", "Loopback", "Rendezvous", "rank_commands"]

LAUNCHERS = ("torchrun", "direct", "none")


class Rendezvous(NamedTuple):
    """Where one host of a job is."""

    host: int
    num_hosts: int
    interface: str
    """Network interface that the ranks talk over."""
    master_address: str
    master_port: int


def rank_commands(
    place: Rendezvous, command: Sequence[str], *, per_host: int, launcher: str
) -> list[tuple[list[str], dict[str, str]]]:
    """Commands to start on one host, each with its variables.

    Args:
        place: Host that starts them.
        command: What follows `torchrun`, or a whole command for the launcher "none".
        per_host: Ranks on each host.
        launcher: "torchrun": one that starts the ranks. "direct": the ranks themselves, with the variables
            that torchrun would set; this saves a second import of torch on each host. "none": the command as
            it is.

    Raises:
        LabError: The launcher is unknown, the command empty or the number of ranks below one.
    """
    if not command:
        raise LabError("got an empty command; expected a script or -m module, with its arguments")
    if per_host < 1:
        raise LabError(f"got {per_host} processes per host; expected at least 1")
    common = {
        "GLOO_SOCKET_IFNAME": place.interface,
        "NCCL_SOCKET_IFNAME": place.interface,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "WIREWISE_HOST": str(place.host),
    }
    if launcher == "none":
        return [(list(command), common)]
    if launcher == "torchrun":
        flags = [
            f"--nnodes={place.num_hosts}",
            f"--node-rank={place.host}",
            f"--nproc-per-node={per_host}",
            f"--master-addr={place.master_address}",
            f"--master-port={place.master_port}",
        ]
        return [([sys.executable, "-m", "torch.distributed.run", *flags, *command], common)]
    if launcher != "direct":
        raise LabError(f"unknown launcher {launcher!r}; expected one of {', '.join(LAUNCHERS)}")
    return [
        ([sys.executable, *command], common | _variables(place, local, per_host)) for local in range(per_host)
    ]


def _variables(place: Rendezvous, local: int, per_host: int) -> dict[str, str]:
    return {
        "RANK": str(place.host * per_host + local),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(place.host),
        "WORLD_SIZE": str(place.num_hosts * per_host),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": str(place.master_port),
    }


class Loopback:
    """The ranks of a job on this machine without any shaping; used, and labelled, where no lab can be had."""

    network = "loopback"
    num_hosts = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(
        self,
        command: Sequence[str],
        *,
        processes: int,
        launcher: str = "torchrun",
        **options: Unpack[JobOptions],
    ) -> JobResult:
        """Run one job of `processes` ranks and wait for its end; arguments as `Lab.launch`."""
        place = Rendezvous(0, 1, "lo", "127.0.0.1", free_port("127.0.0.1"))
        ranks = rank_commands(place, command, per_host=processes, launcher=launcher)
        return RunningJob([Process(0, argv, variables) for argv, variables in ranks], **options).wait()
