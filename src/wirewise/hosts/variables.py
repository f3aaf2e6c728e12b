"""Environment variables by which a rank knows its place, the same that torchrun sets."""

from __future__ import annotations

__all__ = ["rank_variables"]


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
