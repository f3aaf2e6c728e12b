"""Environment variables that define a rank's position, the same that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wirewise.errors import InputError

__all__ = ["integer_variable", "interface_variables", "rank_variables"]


def integer_variable(
    name: str, default: int | None = None, *, minimum: int = 0, variables: Mapping[str, str] | None = None
) -> int:
    """Parse an environment variable as an integer.

    Args:
        name: Name of the variable.
        default: Value if the variable is not set. None if it must be set.
        minimum: Smallest accepted value.
        variables: Environment of the process. Defaults to that of this process.

    Raises:
        InputError: The variable is not set, not an integer, or too small.
    """
    text = (os.environ if variables is None else variables).get(name)
    if text is None and default is not None:
        return default
    try:
        value = int(text or "")
    except ValueError:
        value = minimum - 1
    if value < minimum:
        got = "not set" if text is None else repr(text)
        raise InputError(
            f"the environment variable {name} is {got}; expected an integer of at least {minimum}, as launchers set it"
        )
    return value


def rank_variables(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    *,
    local_rank: int | None = None,
    local_world_size: int = 0,
    host: int = 0,
) -> dict[str, str]:
    """Environment variables of one rank.

    Args:
        rank: Rank in the job.
        world_size: Number of ranks of the job.
        address: Address at which ranks meet.
        port: Port at which ranks meet.
        local_rank: Rank on the host. Defaults to `rank`, as on one host.
        local_world_size: Number of ranks on the host. Defaults to all.
        host: Index of the host.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "GROUP_RANK": str(host),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size or world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def interface_variables(interface: str) -> dict[str, str]:
    """Environment variables that bind gloo and NCCL to a network interface."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
