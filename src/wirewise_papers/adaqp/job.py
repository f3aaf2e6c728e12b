"""Job description for workers, and records of their results."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wirewise import options as opt
from wirewise.results import EpochRecord

__all__ = ["Event", "FullGraphJob", "ModeOutcome", "Outcome"]


class FullGraphJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the ranks of a full-graph run."""

    dataset: opt.Dataset = "debian"
    workers: Annotated[opt.Count, opt.about("Ranks, one part of the graph each.")] = 4
    hosts: Annotated[opt.Natural, opt.about("Hosts to use; 0: one for each rank.")] = 0
    link: opt.Link = "100mbit"
    links: opt.Links = msgspec.field(default_factory=dict)
    network: opt.Network = "auto"
    device: str = "cpu"
    epochs: Annotated[opt.Count, opt.about("Training epochs of every mode.")] = 60
    modes: Annotated[opt.Distinct, opt.about("Modes to train, the reference first.")] = ("fp32", "adaqp")
    gradients: Annotated[
        Literal["float32", "bfloat16"], opt.about("Type in which weight gradients travel, in all modes.")
    ] = "float32"
    seed: Annotated[opt.Seed, opt.about("Seed of weights, dropout and rounding.")] = 0
    model: Annotated[str, opt.about("Graph convolution: gcn or sage.")] = "sage"
    hidden: opt.Hidden = 128
    layers: Annotated[opt.Count, opt.about("Graph convolutions.")] = 3
    dropout: opt.Dropout = 0.5
    norm: Annotated[bool, opt.about("LayerNorm on hidden rows.")] = True
    learning_rate: opt.LearningRate = 0.01
    partition: Annotated[str, opt.about("Partitioner, one that `wirewise data partition` has.")] = "metis"
    turn: opt.Count = 5
    """Epochs per turn of a mode; modes alternate, so that noise of the machine affects all equally."""
    evaluate_every: Annotated[opt.Natural, opt.about("Epochs between evaluations; 0: none.")] = 5
    replan_every: Annotated[opt.Count, opt.about("Epochs between decisions on bits.")] = 20
    checkpoint_every: Annotated[
        opt.Natural, opt.about("Least epochs between two checkpoints of a mode; 0: none are written.")
    ] = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hosts:
            msgspec.structs.force_setattr(self, "hosts", self.workers)
        opt.check_links(self.links, self.hosts)
        opt.check_spread(self.workers, self.hosts)

    @property
    def gradient_bits(self) -> int:
        """Bit width of weight gradients between ranks."""
        return 16 if self.gradients == "bfloat16" else 32


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Status update of one finished epoch."""

    mode: str
    record: EpochRecord


class ModeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one mode by the ranks."""

    records: list[EpochRecord]
    kernel_bytes: int | None
    accuracy: float
    """Test score at the best validation score."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one run by the ranks."""

    modes: dict[str, ModeOutcome]
    peak_memory_bytes: list[int]
    memory_model_bytes: list[int]
