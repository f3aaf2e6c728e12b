"""Process started by srun on a host of an allocation: `-m wirewise.hosts.slurm_host [ORDER]`.

Without an order it prints one line of host facts: name, a free port, versions. With an order it becomes the job's
process for its position, as a lab would have started it.
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

from wirewise.hosts.allocation import host_names
from wirewise.hosts.interfaces import interface_towards
from wirewise.hosts.launch import Rendezvous, rank_commands
from wirewise.hosts.ports import free_port

__all__ = ["HostFacts", "StartRanks", "host_facts", "main"]

_SEEN_S = 5.0
"""Seconds after which a folder made on one host is seen on the others."""


class HostFacts(msgspec.Struct, frozen=True):
    """Facts that must agree on all hosts of an allocation, and a free port."""

    host: str
    python: str
    wirewise: str
    port: int
    """Free port of the host."""


class StartRanks(msgspec.Struct, frozen=True):
    """Order to become a process of a job."""

    commands: list[list[str]]
    """Command of each host, or one for all."""
    launcher: str
    per_host: int
    port: int
    """Port of the store on the first host."""
    folder: str = ""
    """Folder that all hosts must see; empty for none."""


def host_facts() -> HostFacts:
    """Facts of this host."""
    versions = platform.python_version(), metadata.version("wirewise")
    return HostFacts(socket.gethostname(), *versions, free_port())


def main(order: StartRanks) -> None:
    """Become the ordered process; does not return.

    Raises:
        SystemExit: The folder is not accessible on this host.
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
        sys.stdout.write(msgspec.json.encode(host_facts()).decode() + "\n")
