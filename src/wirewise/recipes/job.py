"""The job description that a parent writes, and what its workers write back."""

from __future__ import annotations

import msgspec

from wirewise import units
from wirewise.errors import InputError
from wirewise.results import EpochRecord

__all__ = ["Event", "Job", "ModeOutcome", "Outcome"]


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the workers of one full-graph run must know."""

    dataset: str = "debian"
    """Name of a dataset or path of an .npz file."""
    workers: int = 4
    hosts: int = 4
    link: str = "200mbit"
    """Rate of every host's link in the lab."""
    links: dict[int, str] = {}
    """Rates of single hosts that differ from `link`."""
    network: str = "auto"
    """"lab", "loopback", or "auto": the lab where it can be had."""
    device: str = "cpu"
    epochs: int = 60
    modes: tuple[str, ...] = ("fp32", "adaqp")
    """Modes to train; the first one is the reference."""
    seed: int = 0
    model: str = "sage"
    hidden: int = 128
    layers: int = 3
    dropout: float = 0.5
    norm: bool = True
    learning_rate: float = 0.01
    partition: str = "metis"
    turn: int = 5
    """Epochs that a mode trains before the next one takes its turn, so that noise of the machine hits all alike."""
    evaluate_every: int = 5
    replan_every: int = 20
    checkpoint_every: int = 0
    """Least epochs between two checkpoints of a mode; 0: none are written."""
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the ranges that nothing below checks."""
        for name in ("workers", "hosts", "epochs", "hidden", "layers", "turn", "replan_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("seed", "evaluate_every", "checkpoint_every"):
            if not 0 <= getattr(self, name) < 2**63:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 to {2**63 - 1}")
        for host in self.links:
            if host >= self.hosts:
                raise InputError(
                    f"links name host {host}; expected hosts 0 to {self.hosts - 1}, or more hosts (--hosts)"
                )
        if self.workers % self.hosts:
            raise InputError(
                f"{self.workers} workers cannot be spread evenly over {self.hosts} hosts; "
                "choose a number of workers that is a multiple of the hosts"
            )
        if self.network not in ("auto", "lab", "loopback"):
            raise InputError(f"network is {self.network!r}; expected auto, lab or loopback")
        if not self.modes or len(set(self.modes)) != len(self.modes):
            raise InputError(f"modes are {list(self.modes)}; expected at least one, each once")
        for name in ("learning_rate", "timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; expected a finite number above 0")
        for rate in (self.link, *self.links.values()):
            units.parse_rate(rate)
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; expected at least 0 and below 1")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """News of one finished epoch."""

    mode: str
    record: EpochRecord


class ModeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks measured of one mode."""

    records: list[EpochRecord]
    kernel_bytes: int | None
    accuracy: float
    """Test score at the best validation score."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks measured of one run."""

    modes: dict[str, ModeOutcome]
    peak_memory_bytes: list[int]
    memory_model_bytes: list[int]
