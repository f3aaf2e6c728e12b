"""Records of modes of a pipeline."""

from __future__ import annotations

import msgspec

from wirewise.results import MeasuredPass, PredictedStep

__all__ = ["PipelineMeasures", "PipelineRecord", "PipelineRun"]


class PipelineMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a mode other than time and loss."""

    bubble: float
    """Fraction of the time in which a rank computed nothing, mean over ranks and turns."""
    peak_bytes: int
    """Bytes of all weight versions, gradients, optimizer state and peak activations on the fullest rank."""
    passes: list[MeasuredPass]
    """Passes of the first replica in the first updates of the last turn."""


class PipelineRecord(PredictedStep, frozen=True, kw_only=True):
    """A mode in which a pipeline was trained."""

    bubble: float
    """Fraction of the time in which a rank computed nothing."""
    peak_bytes: int
    """Bytes of weights, gradients, optimizer and activations on the fullest rank."""
    final_loss: float
    """Mean loss of the last updates."""
    time_to_reference_loss_s: float | None
    """Seconds of training until the loss was within 1 % of the baseline's final one. None if never."""
    losses: list[float]
    """Loss of each update, averaged with the few before it."""
    passes: list[MeasuredPass] = msgspec.field(default_factory=list)
    """Passes of one replica over some successive updates."""


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model trained in stages in several modes, interleaved."""

    emulated: str
    """Description of the emulated parts of the run."""
    hosts: int
    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    link: str
    stages: int
    replicas: int
    microbatches: int
    updates: int
    optimizer: str
    meanings: dict[str, str]
    """Meaning of each mode."""
    modes: dict[str, PipelineRecord]
    """Modes; the first is the baseline."""
    fastest: str
    """Name of the mode with the shortest update."""
    speedup_step: float
    """Speed-up of an update of 2bw, or of the fastest mode without 2bw, over the first mode."""
