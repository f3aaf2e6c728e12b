"""Records of resharding between meshes."""

from __future__ import annotations

import msgspec

__all__ = ["MoveFacts", "ReshardRecord", "ReshardRun"]


class MoveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the moves of a plan, besides their time."""

    equal: bool
    """Whether each rank's result equalled the slice of the whole tensor bit for bit, every time."""


class ReshardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One reshard plan as it was executed."""

    strategy: str
    measured_s: float
    """Median seconds of a turn."""
    turns_s: tuple[float, ...]
    bound_s: float
    """Lower bound of any plan on these links, in seconds."""
    predicted_s: float
    equal: bool
    bytes_sent: int
    """Bytes that the plan sends between ranks."""
    bytes_between_hosts: int
    received_bytes: tuple[int, ...]
    """Bytes into the interface of each rank's host, headers included."""
    sent_bytes: tuple[int, ...]


class ReshardRun(msgspec.Struct, frozen=True, kw_only=True):
    """Reshard plans of the same tensors, executed interleaved; the first one is the given plan."""

    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    ranks: int
    tensors: int
    turns: int
    measured_s: float
    bound_s: float
    predicted_s: float
    equal: bool
    """Whether every move gave each rank the slice of the whole tensor, bit for bit."""
    plans: dict[str, ReshardRecord]
