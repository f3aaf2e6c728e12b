"""Slurm allocation of this process, and the position of a rank started by srun. Needs no torch."""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple

from wirewise.errors import InputError
from wirewise.hosts.interfaces import interface_towards
from wirewise.hosts.variables import integer_variable, rank_variables

__all__ = [
    "Allocation",
    "HostPlace",
    "adopt_srun_rank",
    "current_allocation",
    "current_host",
    "host_names",
    "is_single_process",
    "started_by_srun",
]

_FIRST_STEP_OF_ITS_OWN = 0xFFFF_FFF0
"""Numbers from here on are steps of Slurm itself, such as that of a batch script, whose process is no rank."""
_FIRST_PORT, _PORTS, _STEPS = 15_000, 15_000, 16
"""First port, number of ports, and steps of a job with a port of their own; below the kernel's ephemeral ports."""
_TIMEOUT_S = 30.0


class Allocation(NamedTuple):
    """Hosts that Slurm allotted to a job."""

    job: str
    hosts: tuple[str, ...]
    """Names in the order in which srun numbers them."""
    ranks: int
    """Number of requested tasks. Defaults to one per host."""


class HostPlace(NamedTuple):
    """Position of this host in a job with one process per host."""

    host: int
    hosts: tuple[str, ...]
    """Names of all hosts; only that of host 0 has to be known."""
    port: int
    """Rendezvous port on host 0."""


def started_by_srun() -> bool:
    """Whether this process was started by srun, rather than by a batch script or a shell of the allocation."""
    told = os.environ
    return "SLURM_PROCID" in told and int(told.get("SLURM_STEP_ID", -1)) in range(_FIRST_STEP_OF_ITS_OWN)


def current_host() -> HostPlace | None:
    """Index of this host in an srun step with one task per host.

    Returns:
        None if this process was not started by srun.

    Raises:
        InputError: A host has several tasks, or the host list is unknown.
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
    """Find the Slurm allocation of this process. None if there is none.

    Raises:
        InputError: There is an allocation, but its hosts are unknown, or SLURM_NTASKS is no number.
    """
    job, told = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
    if not job or not told:
        return None
    hosts = host_names(told)
    return Allocation(job, hosts, integer_variable("SLURM_NTASKS", len(hosts), minimum=1))


def is_single_process() -> bool:
    """Whether srun started this process alone, such as by `srun -N1 -n1`, so that a single host is intended."""
    told = os.environ
    own = int(told.get("SLURM_STEP_ID", -1)) in range(_FIRST_STEP_OF_ITS_OWN)
    return own and (told.get("SLURM_STEP_NUM_NODES"), told.get("SLURM_STEP_NUM_TASKS")) == ("1", "1")


def host_names(hostlist: str) -> tuple[str, ...]:
    """Expand a compressed Slurm host list such as "h[0-2],gpu7".

    Raises:
        InputError: Slurm's `scontrol` is missing, or cannot parse the list.
    """
    if not any(letter in hostlist for letter in ",["):
        return (hostlist,)
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", hostlist], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"`scontrol show hostnames {hostlist}` cannot be run: {error}; put Slurm's commands on the path"
        ) from error
    if done.returncode:
        raise InputError(f"Slurm does not know the hosts {hostlist!r}: {done.stderr.strip()}")
    return tuple(done.stdout.split())


def adopt_srun_rank() -> bool:
    """Set RANK and related variables from srun's variables, unless already set.

    Returns:
        True if this process is a rank, by srun or by another launcher.

    Raises:
        InputError: The hosts of the step are unknown.
    """
    told = os.environ
    if "RANK" in told:
        return True
    if not started_by_srun():
        return False
    hosts, host = host_names(told["SLURM_STEP_NODELIST"]), int(told["SLURM_NODEID"])
    own = rank_variables(
        int(told["SLURM_PROCID"]),
        int(told["SLURM_STEP_NUM_TASKS"]),
        hosts[0],
        _step_port(),
        local_rank=int(told["SLURM_LOCALID"]),
        local_world_size=_tasks_of(told["SLURM_STEP_TASKS_PER_NODE"])[host],
        host=host,
    )
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
