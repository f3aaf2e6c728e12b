"""A process that srun starts on a host of an allocation: `-m wirewise.trials.slurm_host [ORDER]`.

Without an order it says in one line what a host has: its name, a free port, versions. With one it becomes the process
of a job that it is by its place, as a lab would have started it.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from importlib import metadata
from pathlib import Path

import msgspec

from wirewise.allocation import host_names, interface_towards
from wirewise.hosts import free_port
from wirewise.lab.launch import Rendezvous, rank_commands

__all__ = ["HostFacts", "StartRanks", "facts_here", "main"]

_SEEN_S = 5.0
"""Seconds after which a folder made on one host is seen on the others."""


class HostFacts(msgspec.Struct, frozen=True):
    """What has to be alike on all hosts of an allocation, and a port."""

    host: str
    python: str
    wirewise: str
    port: int
    """Port of the host that was free."""


class StartRanks(msgspec.Struct, frozen=True):
    """Order to become a process of a job."""

    commands: list[list[str]]
    """Command of each host, or one for all."""
    launcher: str
    per_host: int
    port: int
    """Port of the store on the first host."""
    folder: str = ""
    """Folder that all hosts must see; nothing: none."""


def facts_here() -> HostFacts:
    """What this host has."""
    versions = platform.python_version(), metadata.version("wirewise")
    return HostFacts(socket.gethostname(), *versions, free_port())


def main(order: StartRanks) -> None:
    """Become the process; does not return.

    Raises:
        SystemExit: The folder is not seen here.
    """
    until_s = time.monotonic() + _SEEN_S
    while order.folder and not Path(order.folder).is_dir():
        if time.monotonic() > until_s:
            raise SystemExit(
                f"host {socket.gethostname()} does not see the folder {order.folder}; expected one on a file system "
                "that all hosts share (--out)"
            )
        time.sleep(0.2)
    hosts, host = host_names(os.environ["SLURM_STEP_NODELIST"]), int(os.environ["SLURM_NODEID"])
    tasks = os.environ["SLURM_STEP_TASKS_PER_NODE"]
    wanted = order.per_host if order.launcher == "direct" else 1
    if tasks not in (str(wanted), f"{wanted}(x{len(hosts)})"):
        raise SystemExit(
            f"Slurm gives {', '.join(hosts)} {tasks} tasks; expected {wanted} on each: ask for an allocation with "
            f"--ntasks-per-node={wanted}"
        )
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or interface_towards(hosts, host)
    place = Rendezvous(host, len(hosts), interface or "", hosts[0], order.port)
    command = order.commands[host % len(order.commands)]
    started = rank_commands(place, command, per_host=order.per_host, launcher=order.launcher)
    argv, variables = started[int(os.environ["SLURM_LOCALID"]) % len(started)]
    # Hosts have names of their own here, and InfiniBand is NCCL's own affair.
    own = {
        name: value
        for name, value in variables.items()
        if name not in ("WIREWISE_HOST", "NCCL_SOCKET_IFNAME")
    }
    if not interface:
        del own["GLOO_SOCKET_IFNAME"]
    os.execvpe(argv[0], argv, {**os.environ, **own})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(msgspec.json.decode(sys.argv[1], type=StartRanks))
    else:
        sys.stdout.write(msgspec.json.encode(facts_here()).decode() + "\n")
