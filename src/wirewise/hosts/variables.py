"""Environment variables by which a rank knows its place, the same that torchrun sets."""

from __future__ import annotations

import os

from wirewise.errors import InputError

__all__ = ["integer_variable", "rank_variables"]


def integer_variable(name: str, default: int | None = None, *, least: int = 0) -> int:
    """Integer value of an environment variable.

    Args:
        name: Name of the variable.
        default: Value where the variable is not set; None: it has to be.
        least: Smallest integer that is accepted.

    Raises:
        InputError: It is not set, no integer, or less.
    """
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        value = int(text or "")
    except ValueError:
        value = least - 1
    if value < least:
        got = "not set" if text is None else repr(text)
        raise InputError(
            f"the environment variable {name} is {got}; expected an integer of at least {least}, as torchrun sets it"
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
) -> dict[str, str]:
    """Variables of one rank.

    Args:
        rank: Rank in the job.
        world_size: Number of ranks of the job.
        address: Address at which ranks meet.
        port: Port at which ranks meet.
        local_rank: Rank on the host. Defaults to `rank`, as on one host.
        local_world_size: Number of ranks on the host. Defaults to all.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size or world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
