"""Records of deployments."""

from __future__ import annotations

import msgspec

from wirewise.results import PredictedStep

__all__ = ["DeploymentRecord", "DeploymentRun", "TrainingFacts"]


class TrainingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a training under a plan other than its steps."""

    loss_error: float
    """Largest difference to the losses of one process over the first steps, relative where these are above 1."""
    message_s: float = 0.0
    """Mean seconds of an empty message between two hosts. 0 if not measured."""


class DeploymentRecord(PredictedStep, frozen=True, kw_only=True):
    """Plan of a model with its measured steps."""

    bytes_sent: int
    """Bytes out of all interfaces in a step, headers included."""
    loss_equal: bool
    """Whether losses equal those of one process to 1e-5."""
    loss_error: float
    steps_s: tuple[float, ...]


class DeploymentRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model trained on unequal hosts under several plans, interleaved."""

    emulated: str
    """Description of the emulated parts of the run."""
    model: str
    speeds: tuple[float, ...]
    """Speed of each host."""
    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    batch: int
    steps: int
    """Measured steps of each plan."""
    meanings: dict[str, str]
    """Meaning of each plan."""
    plans: dict[str, DeploymentRecord]
    """Plans; the first is the baseline."""
    fastest: str
    """Name of the plan with the shortest step."""
    speedup: float
    """Speed-up of tag, or of the fastest plan without tag, over the first plan."""
