"""Commands that together form one run, started once on each host or as each rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wirewise.hosts import integer_variable

__all__ = ["JointStart", "joint_start"]

_HOST_COUNTS = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--num-nodes")
_OF_ONE_HOST = (
    "--node-rank",
    "--node_rank",
    "--machine_rank",
    "--machine-rank",
    "--local-addr",
    "--local_addr",
    "--nproc-per-node",
    "--nproc_per_node",
)
"""Options of launchers that may differ from host to host."""
_PLACES = ("PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "PET_RDZV_ID")
"""Variables in the place of torchrun's options."""


class JointStart(NamedTuple):
    """Part of a run that is started by several commands."""

    run: str
    """Name of the run, the same for all of them."""
    reports: bool
    """Whether this launcher reports the recording."""


def joint_start(command: Sequence[str], variables: Mapping[str, str]) -> JointStart | None:
    """Detect whether a command is part of a run that is started on several hosts or as several ranks.

    Args:
        command: Command of this host; those of the others differ in the number of the host.
        variables: Variables of this process.

    Returns:
        None if the command is the whole run.

    Raises:
        InputError: The variable WORLD_SIZE is no number of ranks.
    """
    size = (
        integer_variable("WORLD_SIZE", minimum=1, variables=variables) if variables.get("WORLD_SIZE") else 1
    )
    if size > 1 and "RANK" in variables:
        # A launcher has started this process as one of the ranks.
        places = [variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        return JointStart(_name([*command, *places]), variables["RANK"] == "0")
    counts = [value for name, value in _options(command) if name in _HOST_COUNTS]
    several = [count for count in [*counts, variables.get("PET_NNODES", "")] if count not in ("", "1", "1:1")]
    if not several:
        return None
    alike = [f"{name}={value}" for name, value in _options(command) if name not in _OF_ONE_HOST]
    return JointStart(_name([*alike, *(variables.get(name, "") for name in _PLACES)]), True)


def _options(command: Sequence[str]) -> list[tuple[str, str]]:
    """Words of a command; an option with the value behind it as one."""
    words, found = list(command), list[tuple[str, str]]()
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not equals and name in (*_HOST_COUNTS, *_OF_ONE_HOST) and words:
            value = words.pop(0)
        found.append((name, value))
    return found


def _name(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
