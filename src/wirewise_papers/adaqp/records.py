"""Records of modes and of whole runs."""

from __future__ import annotations

import msgspec

from wirewise.results import EpochRecord

__all__ = ["ModeResult", "RunResult"]


class ModeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole training run in one mode."""

    epochs: list[EpochRecord]
    epoch_s: float
    """Median of `train_s`, without the first two (warm-up) epochs."""
    epoch_s_quartiles: tuple[float, float]
    time_to_reference_loss_s: float | None
    """Wall-clock seconds, including evaluations, to reach the reference mode's loss. None if never reached."""
    final_loss: float
    accuracy: float
    """Test accuracy at the best validation accuracy."""
    bytes_sent: int
    """Payload bytes of all ranks over all epochs."""
    kernel_bytes_sent: int | None
    """Bytes by the kernel's interface counters over the mode's epochs. None without a lab."""
    mean_bits: float
    """Mean bits per value over all messages sent."""
    peak_memory_bytes: list[int]
    """Peak growth of each rank's RSS during training, in bytes."""
    memory_model_bytes: list[int]
    """Predicted bytes of each rank by the memory model: part, halo and activations."""

    @property
    def run_s(self) -> float:
        """Training time of all epochs, with warm-up, link probes and bit planning, without evaluation, in seconds."""
        return sum(record.train_s for record in self.epochs)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Several modes trained on the same parts, interleaved."""

    dataset: str
    workers: int
    hosts: int
    network: str
    """"lab", "slurm" or "loopback"."""
    link_bytes_per_s: float | None
    model: str
    hidden: int
    layers: int
    seed: int
    epochs: int
    graph: dict[str, float]
    """Figures of the graph: nodes, edges, features, classes, halo_rows, central_fraction."""
    reference: str
    """Name of the baseline mode."""
    modes: dict[str, ModeResult]
    environment: dict[str, str]
    """Versions, processor, command, date."""
    gradients: str = "float32"
    """Type of weight gradients on the wire, in all modes."""
    notes: list[str] = []
    """Caveats of the figures: emulated parts, fallbacks, loopback."""
