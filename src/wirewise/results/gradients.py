"""What runs of compressed and of fused gradients report."""

from __future__ import annotations

import msgspec

__all__ = [
    "Advice",
    "CompressionRun",
    "DproResult",
    "GroupRecord",
    "PlanRecord",
]


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients that travel together in one step of a plan; measured times are medians of the slowest rank."""

    first: int
    """Number of its first tensor in the order of back-propagation."""
    last: int
    elements: int
    codec: str
    scheme: str
    decode: str
    payload_bytes: int
    """Bytes that a rank sends in a step, without headers."""
    predicted_s: tuple[float, float, float]
    """Seconds to encode, to communicate and to decode; what a scheme decodes on the way is part of communicating."""
    measured_s: tuple[float, float, float] | None = None


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and its steps."""

    step_s: float
    """Median over steps of the slowest rank."""
    quartiles_s: tuple[float, float]
    predicted_step_s: float
    error: float
    """Relative error, predicted / measured - 1."""
    lower_bound_s: float
    """Seconds that no step of the planner's model beats with these codecs."""
    payload_bytes: int
    """Bytes that a rank sends in a step, without headers."""
    bytes_sent: int | None
    """Bytes of a step by the kernel's counters, with headers; None where there is no lab."""
    groups: list[GroupRecord]


class CompressionRun(msgspec.Struct, frozen=True, kw_only=True):
    """Plans of compressed gradients, carried out in turns."""

    model: str
    emulated: str
    """What was not real, in words."""
    hosts: int
    link: str
    codec: str
    tensors: int
    elements: int
    forward_s: float
    """Forward pass and optimizer, measured without other ranks."""
    backward_s: float
    """Seconds of back-propagation, measured without other ranks."""
    steps: int
    """Number of measured steps of each plan."""
    plans: dict[str, PlanRecord]
    fastest: str
    """Name of the plan with the shortest measured step."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, what was planned, and what to do."""

    verdict: str
    """ "compress", "regroup" (an uncompressed plan, measured to be faster), "keep" (the script as it is), or "unknown":
    no plan was tried, and the prediction is too far off to advise upon."""
    sentence: str
    hosts: int = 1
    """Hosts of an allocation of Slurm on which the command ran; 1: it started its ranks itself."""
    ranks: int
    gradient_bytes: int
    measured_step_s: float
    """Step of the command as it is."""
    predicted_ddp_s: float
    """Predicted step of the command as it is, with buckets of 25 MiB."""
    prediction_error: float
    """`predicted_ddp_s` / `measured_step_s` - 1."""
    predicted_plain_s: float
    """Predicted step of the best buckets without compression."""
    predicted_step_s: float
    """Predicted step of the best plan that may compress."""
    lower_bound_s: float
    gain: float
    """Share of the best uncompressed step that compressing saves, predicted."""
    tried_step_s: dict[str, float]
    """Measured step of each plan that was tried, by its codec, none, or mixed."""
    measured_gain: float | None
    """Share of the shortest uncompressed step, as it is or under a plan, that the best plan saves; None: none was
    tried."""
    measured_gain_interval: tuple[float, float] | None = None
    """Interval of 95 % of what the best plan saves of the uncompressed one's step, both tried; None: not known."""
    compress: bool
    latency_s: float
    """Latency of an all-reduce, fitted to measured ones."""
    bandwidth_bytes_per_s: float
    """Bandwidth of each rank, fitted to measured all-reduces."""
    break_even_bytes_per_s: float | None
    """Bandwidth below which compressing pays; None: at none."""
    plan: str
    """File of the plan to use, where the verdict is to use one; else of one without compression."""
    lines: tuple[str, ...]
    """What to write into the script; none where the verdict is to keep it as it is, or unknown."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as models that were not measured."""


class DproResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was said to give, and what it gave."""

    sentence: str
    """What bounds a step."""
    hosts: int = 1
    """Hosts of an allocation of Slurm on which the command ran; 1: it started its ranks itself."""
    ranks: int
    measured_step_s: float
    """Step of the recorded run."""
    replayed_step_s: float
    error: float
    """Relative error, replayed / measured - 1."""
    predicted_step_s: float
    """Simulated seconds of a step under the plan."""
    predicted_gain: float
    """Share of the step that the plan saves, simulated."""
    present_step_s: list[float]
    """Each run without the plan, measured."""
    planned_step_s: list[float]
    """Each run with it, measured."""
    gain: float
    """Share of the step that the plan saves, measured: mean of pairs."""
    ci95: tuple[float, float]
    """Interval of the gain, by Student's t over pairs."""
    kept: bool
    """Whether the whole interval is above zero."""
    plan: str
    """File of the plan."""
