"""What a training run reports: one record an epoch, one result a mode, one result a run.

Runtimes write these records, reports and the command line read them. Seconds are float, bytes are int.
"""

from __future__ import annotations

import msgspec

__all__ = ["EpochRecord", "ModeResult", "RunResult"]


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One training epoch of one mode, over all ranks."""

    epoch: int
    loss: float
    """Mean training loss over the global training nodes."""
    train_s: float
    """Wall-clock time of the epoch on the slowest rank, re-planning included, evaluation left out."""
    eval_s: float = 0.0
    """Wall-clock time of the evaluation after this epoch (0 when there was none)."""
    phases: dict[str, float] = {}
    """Seconds of the mean rank in each phase: pack, wire, unpack, central, marginal, reduce, plan,
    other."""
    bytes_sent: int = 0
    """Payload bytes of halo messages that all ranks sent in the epoch."""
    bits: dict[str, dict[int, int]] = {}
    """Messages by bit width for each exchange: {"forward1": {2: 812, 8: 3071}}."""
    accuracy: dict[str, float] = {}
    """Accuracy (or micro-F1) by split, "train", "validation", "test"; empty when not evaluated."""


class ModeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole training run in one mode."""

    epochs: list[EpochRecord]
    epoch_s: float
    """Median of `train_s`, the first two (warm-up) epochs left out."""
    epoch_s_quartiles: tuple[float, float]
    time_to_reference_loss_s: float | None
    """Wall-clock seconds, evaluations included, until the reference mode's loss was reached; None: never."""
    final_loss: float
    accuracy: float
    """Test accuracy at the best validation accuracy."""
    bytes_sent: int
    """Payload bytes of all ranks over all epochs."""
    kernel_bytes_sent: int | None
    """Bytes that the kernel's interface counters saw over the mode's epochs; None where there is no lab."""
    mean_bits: float
    """Mean bits per value over all messages sent."""
    peak_memory_bytes: list[int]
    """Peak resident growth of each rank during training."""
    memory_model_bytes: list[int]
    """The documented formula: part + halo + activations of each rank."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Several modes trained on the same parts, interleaved."""

    dataset: str
    workers: int
    hosts: int
    network: str
    """"lab" or "loopback"."""
    link_bytes_per_s: float | None
    model: str
    hidden: int
    layers: int
    seed: int
    epochs: int
    graph: dict[str, float]
    """nodes, edges, features, classes, halo_rows, central_fraction."""
    reference: str
    """Name of the mode that the others are compared with."""
    modes: dict[str, ModeResult]
    environment: dict[str, str]
    """Versions, processor, command, date."""
    notes: list[str] = []
    """Sentences that a reader of the numbers must know: emulated parts, fallbacks, loopback."""
