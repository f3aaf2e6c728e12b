"""The allocation of Slurm that this process runs in, and the place of a rank that srun has started. Needs no torch."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
from typing import NamedTuple

from wirewise.errors import InputError

__all__ = [
    "Allocation",
    "HostPlace",
    "alone_on_a_host",
    "current_allocation",
    "current_host",
    "host_names",
    "interface_of",
    "interface_towards",
    "started_by_srun",
    "take_place",
]

_SIOCGIFADDR = 0x8915
_FIRST_STEP_OF_ITS_OWN = 0xFFFF_FFF0
"""Numbers from here on are steps of Slurm itself, such as that of a batch script, whose process is no rank."""
_FIRST_PORT, _PORTS, _STEPS = 15_000, 15_000, 16
"""Ports below those that the kernel gives to whoever asks for any; so many steps of one job have one each."""
_TIMEOUT_S = 30.0


class Allocation(NamedTuple):
    """Hosts that Slurm has given to a job."""

    job: str
    hosts: tuple[str, ...]
    """Names in the order in which srun numbers them."""
    ranks: int
    """Tasks that were asked for; one a host where none were."""


class HostPlace(NamedTuple):
    """This host among those of a job with one process on each."""

    host: int
    hosts: tuple[str, ...]
    """Names of all hosts; only that of host 0 has to be known."""
    port: int
    """Port on host 0 at which they meet."""


def started_by_srun() -> bool:
    """Whether srun has started this process, and not a batch script or a shell of the allocation."""
    told = os.environ
    return "SLURM_PROCID" in told and int(told.get("SLURM_STEP_ID", -1)) in range(_FIRST_STEP_OF_ITS_OWN)


def current_host() -> HostPlace | None:
    """Place of this host in a step of srun that has one task on each host.

    Returns:
        None if srun has not started this process.

    Raises:
        InputError: A host has several tasks, or the hosts cannot be told.
    """
    if not started_by_srun():
        return None
    told = os.environ
    hosts = host_names(told["SLURM_STEP_NODELIST"])
    if set(tasks := _tasks_of(told["SLURM_STEP_TASKS_PER_NODE"])) != {1}:
        raise InputError(
            f"srun has started {max(tasks)} tasks on a host; expected one on each, which starts the ranks: "
            "srun --ntasks-per-node=1"
        )
    return HostPlace(int(told["SLURM_NODEID"]), hosts, _step_port())


def current_allocation() -> Allocation | None:
    """The allocation that this process runs in; None: it is in none.

    Raises:
        InputError: There is one, and its hosts cannot be told.
    """
    job, told = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
    if not job or not told:
        return None
    hosts = host_names(told)
    return Allocation(job, hosts, int(os.environ.get("SLURM_NTASKS", len(hosts))))


def alone_on_a_host() -> bool:
    """Whether this process is all that srun has started, such as by `srun -N1 -n1`, and so on one host by intention."""
    told = os.environ
    own = int(told.get("SLURM_STEP_ID", -1)) in range(_FIRST_STEP_OF_ITS_OWN)
    return own and (told.get("SLURM_STEP_NUM_NODES"), told.get("SLURM_STEP_NUM_TASKS")) == ("1", "1")


def host_names(told: str) -> tuple[str, ...]:
    """Names of hosts that Slurm has told in short, such as "h[0-2],gpu7".

    Raises:
        InputError: Slurm's `scontrol` is not there, or does not understand it.
    """
    if not any(letter in told for letter in ",["):
        return (told,)
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", told], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"`scontrol show hostnames {told}` cannot be run: {error}; put Slurm's commands on the path"
        ) from error
    if done.returncode:
        raise InputError(f"Slurm does not know the hosts {told!r}: {done.stderr.strip()}")
    return tuple(done.stdout.split())


def take_place() -> bool:
    """Let this process be the rank that srun has made it: set RANK and what goes with it, where they are not set.

    Returns:
        Whether it is a rank, by srun or by another launcher.

    Raises:
        InputError: The hosts of the step cannot be told.
    """
    told = os.environ
    if "RANK" in told:
        return True
    if "SLURM_PROCID" not in told or int(told.get("SLURM_STEP_ID", -1)) not in range(_FIRST_STEP_OF_ITS_OWN):
        return False
    hosts, host = host_names(told["SLURM_STEP_NODELIST"]), int(told["SLURM_NODEID"])
    own = {
        "RANK": told["SLURM_PROCID"],
        "LOCAL_RANK": told["SLURM_LOCALID"],
        "GROUP_RANK": told["SLURM_NODEID"],
        "WORLD_SIZE": told["SLURM_STEP_NUM_TASKS"],
        "LOCAL_WORLD_SIZE": str(_tasks_of(told["SLURM_STEP_TASKS_PER_NODE"])[host]),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(_step_port()),
    }
    if interface := interface_towards(hosts, host):
        own["GLOO_SOCKET_IFNAME"] = interface
    for name, value in own.items():
        told.setdefault(name, value)
    return True


def _step_port() -> int:
    """Port that other steps of this job, and most other jobs, do not have."""
    number = int(os.environ["SLURM_JOB_ID"]) * _STEPS + int(os.environ["SLURM_STEP_ID"]) % _STEPS
    return _FIRST_PORT + number % _PORTS


def _tasks_of(told: str) -> list[int]:
    """Tasks of each host, such as "2(x3),1"."""
    found: list[int] = []
    for tasks, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", told):
        found += [int(tasks)] * int(times or 1)
    return found


def interface_towards(hosts: tuple[str, ...], host: int) -> str | None:
    """Network interface over which one of some hosts reaches the others; None: they do not say.

    A host's own name may stand for its loopback address, at which nobody else reaches it.

    Args:
        hosts: Names of hosts, in their order.
        host: Number of the one that this process is on.
    """
    others = [name for number, name in enumerate(hosts) if number != host]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing; the kernel only looks up the way.
            probe.connect((others[0], 9))
            return interface_of(probe.getsockname()[0])
        except (OSError, IndexError):
            return None


def interface_of(address: str) -> str | None:
    """Network interface of this host that has an address, or the address of a name; None if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            own = socket.inet_aton(socket.gethostbyname(address))
        except OSError:
            return None
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no such address
            if answer[20:24] == own:
                return name
    return None
