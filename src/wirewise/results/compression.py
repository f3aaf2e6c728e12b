"""Advice on compressing gradients."""

from __future__ import annotations

import msgspec

__all__ = ["CompressionAdvice"]


class CompressionAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a job, the plan, and the advice."""

    verdict: str
    """ "compress", "regroup" (a faster uncompressed plan, as measured), "keep" (the unchanged script), or "unknown":
    no plan was tried, and the prediction is too inaccurate to rely on."""
    sentence: str
    hosts: int = 1
    """Number of hosts of the Slurm allocation on which the command ran; 1 if the command started its ranks itself."""
    ranks: int
    gradient_bytes: int
    measured_step_s: float
    """Measured step of the unchanged command."""
    predicted_ddp_s: float
    """Predicted step of the unchanged command, with buckets of 25 MiB."""
    prediction_error: float
    """`predicted_ddp_s` / `measured_step_s` - 1."""
    predicted_plain_s: float
    """Predicted step of the best buckets without compression."""
    predicted_step_s: float
    """Predicted step of the best plan that may compress."""
    lower_bound_s: float
    gain: float
    """Predicted saving by compression, as a fraction of the best uncompressed step."""
    tried_step_s: dict[str, float]
    """Measured step of each tried plan, by its codec, "none" or "mixed"; "-uncompressed" marks the same buckets and
    schemes without a codec."""
    measured_gain: float | None
    """Saving of the best plan, as a fraction of the shortest uncompressed step, unchanged or planned. None if no plan
    was tried."""
    measured_gain_interval: tuple[float, float] | None = None
    """95 % interval of `measured_gain`. None if either has fewer than four measured steps."""
    compress: bool
    latency_s: float
    """Latency of an all-reduce, fitted to measured ones."""
    bandwidth_bytes_per_s: float
    """Bandwidth of each rank, fitted to measured all-reduces."""
    break_even_bytes_per_s: float | None
    """Bandwidth below which compression pays. None if it never does."""
    plan: str
    """File of the recommended plan, or of an uncompressed one if none is recommended."""
    lines: tuple[str, ...]
    """Lines to write into the script. Empty if the verdict is "keep" or "unknown"."""
    notes: tuple[str, ...] = ()
    """Caveats, such as models that were not measured."""
