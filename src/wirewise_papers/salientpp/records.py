"""Records of modes and of whole runs."""

from __future__ import annotations

import msgspec

__all__ = ["MiniBatchRecord", "MiniBatchRun"]


class MiniBatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A mode of mini-batch training, measured."""

    epoch_s: float
    """Median seconds of an epoch."""
    epochs_s: tuple[float, ...]
    remote_rows: int
    """Rows that all machines fetch in an epoch."""
    bytes_sent: int
    """Bytes of ids and rows of all machines in an epoch, without headers."""
    bytes_predicted: int
    """Bytes of ids and rows that the cache plan expects, before training."""
    gradient_bytes: int
    """Gradient bytes of all machines in an epoch; without a codec those of a ring."""
    hit_rate: float
    """Fraction of needed remote rows that were cached."""
    accuracy: float | None
    """Accuracy on uniformly sampled test nodes. None if compute was emulated."""
    loss: float | None
    """Training loss of the last epoch. None if compute was emulated."""
    stage_s: dict[str, float]
    """Median seconds of a batch on rank 0, by stage."""
    link_s: float
    """Seconds per epoch of the busiest link for ids, rows and gradients, including TCP and Ethernet headers."""
    cpu_s: float
    """Seconds of compute per epoch on the CPUs shared by all machines."""
    pipelined: bool = False
    speedup: float = 1.0
    """Speed-up of an epoch over the first mode."""
    speedup_run: float = 1.0
    """Speed-up of setup and all epochs over the first mode."""
    slept_s: float = 0.0
    """Seconds per epoch slept to emulate an accelerator."""
    row_format: str = "dense"
    """Wire format of fetched rows: dense, bits, ones (their columns), sparse, int8 or bfloat16."""
    row_bytes: float = 0.0
    """Mean bytes of a row in that format, over all nodes."""
    sampling_bytes: int = 0
    """Bytes of nodes and neighbours of all machines in an epoch, where the topology is partitioned."""
    setup_s: float = 0.0
    """Mode-specific setup before the first epoch, in seconds: planning and filling its cache."""

    @property
    def run_s(self) -> float:
        """Time of setup and all epochs, in seconds."""
        return self.setup_s + sum(self.epochs_s)

    @property
    def predicted_s(self) -> float:
        """Modelled epoch time: the maximum of link, CPU and sleep times in a pipeline, else their sum, in seconds."""
        parts = (self.link_s, self.cpu_s, self.slept_s)
        return max(parts) if self.pipelined else sum(parts)

    @property
    def binding(self) -> str:
        """Bottleneck of an epoch: "link", "processors", or the "accelerator" that is slept."""
        parts = {"link": self.link_s, "processors": self.cpu_s, "accelerator": self.slept_s}
        return max(parts, key=lambda name: parts[name])


class MiniBatchRun(msgspec.Struct, frozen=True, kw_only=True):
    """Modes of mini-batch training over partitioned features, one after another."""

    dataset: str
    workers: int
    link: str
    alpha: float
    policy: str
    batches: int
    """Batches of an epoch on each machine."""
    predicted_remaining: float
    """Fraction of the remote rows that the cache plan expects to be fetched."""
    sampler_edges_per_s: float
    """Rate of the sampler on one thread."""
    modes: dict[str, MiniBatchRecord]
    hosts: int = 0
    policies: dict[str, dict[str, float]] = {}
    """Fraction of the remote rows that each policy leaves to fetch, by alpha."""
    codec: str = ""
    """Codec of gradients, in modes that compress them."""
    topology: str = "replicated"
    device: str = "cpu"
    share: str = "equal"
    """Method by which machines divide the cached rows, "equal" or "balanced" (`planners.cache.vip`)."""
    processors: str = "shared"
    """"shared": machines share the CPUs of one computer; "own": emulated as if each had its own."""
