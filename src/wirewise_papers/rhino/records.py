"""Records of training methods."""

from __future__ import annotations

import msgspec

__all__ = ["ParallelRecord", "ParallelRun", "ParallelTimes"]


class ParallelTimes(msgspec.Struct, kw_only=True):
    """Measurements of one training method."""

    losses: list[float]
    """Loss of each of the first steps."""
    steps_s: list[float] = []
    """Duration of each measured step, of the slowest rank."""
    sent_bytes: list[int] = []
    """Bytes out of the interfaces of all hosts in each measured step, headers included; empty if not counted."""


class ParallelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Training method of a model on several ranks."""

    step_s: float
    """Median seconds of a step over all turns."""
    steps_s: tuple[float, ...]
    predicted_step_s: float | None
    """Predicted seconds of a step. None if not predicted."""
    bytes_sent: int | None
    """Bytes out of the interfaces of all hosts in a step, headers included; None if not counted."""
    predicted_bytes: int | None
    loss_equal: bool
    """Whether the losses of the first steps are those of one device."""
    loss_error: float
    """Largest difference of a loss from that of one device, as a fraction of it."""
    meaning: str = ""


class ParallelRun(msgspec.Struct, frozen=True, kw_only=True):
    """Model trained on several ranks by several methods, interleaved."""

    model: str
    parameters: int
    emulated: str
    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    turns: int
    capture_s: float
    """Seconds of capturing the model's step as a graph."""
    planning_s: float
    losses: tuple[float, ...]
    """Losses of one device."""
    plans: dict[str, ParallelRecord]
    """Training methods by name; `rhino` is the planned one."""
    fastest: str
    choices: dict[str, str] = {}
    """Description of each block's sharding in the plan."""
    why: tuple[str, ...] = ()
    """Reasons for the plan, and tensors that it does not shard."""
