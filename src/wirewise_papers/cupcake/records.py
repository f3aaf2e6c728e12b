"""Records of plans of compressed gradients."""

from __future__ import annotations

import msgspec

__all__ = ["CompressionRun", "GroupRecord", "PlanRecord"]


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Gradient group of a plan in one step; measured times are medians of the slowest rank."""

    first: int
    """Index of its first tensor in the order of back-propagation."""
    last: int
    elements: int
    codec: str
    scheme: str
    decode: str
    payload_bytes: int
    """Bytes that a rank sends in a step, without headers."""
    predicted_s: tuple[float, float, float]
    """Seconds to encode, to communicate and to decode; decoding within a scheme's communication counts as
    communication."""
    measured_s: tuple[float, float, float] | None = None


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Measured steps of a plan."""

    step_s: float
    """Median seconds of a step, of the slowest rank."""
    quartiles_s: tuple[float, float]
    predicted_step_s: float
    error: float
    """Relative error, predicted / measured - 1."""
    lower_bound_s: float
    """Lower bound of the step in the planner's cost model with these codecs, in seconds."""
    payload_bytes: int
    """Bytes that a rank sends in a step, without headers."""
    bytes_sent: int | None
    """Bytes per step by the kernel's counters, with headers. None without a lab."""
    groups: list[GroupRecord]


class CompressionRun(msgspec.Struct, frozen=True, kw_only=True):
    """Plans of compressed gradients, executed interleaved."""

    model: str
    emulated: str
    """Description of the emulated parts of the run."""
    hosts: int
    link: str
    codec: str
    tensors: int
    elements: int
    forward_s: float
    """Seconds of forward pass and optimizer, measured without other ranks."""
    backward_s: float
    """Seconds of back-propagation, measured without other ranks."""
    steps: int
    """Number of measured steps of each plan."""
    plans: dict[str, PlanRecord]
    fastest: str
    """Name of the plan with the shortest measured step."""
