"""What runs of models that several ranks share report: pipelines, plans in parallel, deployments, tensors moved."""

from __future__ import annotations

import msgspec

from wirewise.results.graphs import MeasuredPass

__all__ = [
    "DeploymentRecord",
    "DeploymentRun",
    "DeploymentTimes",
    "MovedTimes",
    "ParallelRecord",
    "ParallelRun",
    "ParallelTimes",
    "PipelineRecord",
    "PipelineRun",
    "PipelineTimes",
    "PredictedStep",
    "ReshardRecord",
    "ReshardRun",
]


class PipelineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a pipeline measured while they trained."""

    steps_s: list[float]
    """Seconds of each update but the first of a turn, mean over the ranks."""
    ends_s: list[float]
    """Seconds of training until each update was done on all ranks."""
    losses: list[float]
    """Loss of each update."""
    bubble: float
    """Share of the time in which a rank computed nothing, mean over ranks and turns."""
    peak_bytes: int
    """Weights in all versions, gradients, state of the optimizer and most saved activations, of the fullest rank."""
    passes: list[MeasuredPass] = []
    """Passes over the first updates of the last turn, of the first replica."""


class PredictedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose time was measured and predicted; a step of a pipeline is an update of its weights."""

    step_s: float
    """Median seconds of a step."""
    predicted_step_s: float
    """Simulated seconds of a step."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_step_s / self.step_s - 1.0


class PipelineRecord(PredictedStep, frozen=True, kw_only=True):
    """A mode in which a pipeline was trained."""

    bubble: float
    """Share of the time in which a rank computed nothing."""
    peak_bytes: int
    """Bytes of weights, gradients, optimizer and activations on the fullest rank."""
    final_loss: float
    """Mean loss of the last updates."""
    time_to_reference_loss_s: float | None
    """Seconds of training until the loss was within 1 % of the reference's final one; None: never."""
    losses: list[float]
    """Loss of each update, averaged with the few before it."""
    passes: list[MeasuredPass] = []
    """Passes over some updates in a row, of one replica."""


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model trained in stages in several modes, in turns."""

    emulated: str
    """What was not real, in words."""
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
    """The first one is what the others are compared with."""
    fastest: str
    """Name of the mode with the shortest update."""
    speedup_step: float
    """Update of the first mode over that of 2bw, or of the fastest mode where 2bw is not among them."""


class MovedTimes(msgspec.Struct, kw_only=True):
    """What the ranks measured of the moves of one reshard plan."""

    seconds: list[float]
    """Duration of each move, from the first start to the last end."""
    equal: bool
    """Whether every rank had what slicing gives, bit for bit, each time."""
    received_bytes: list[int]
    """Bytes into the interface of each rank's host in the last move, headers included; 0: not counted."""
    sent_bytes: list[int]
    """Bytes out of it."""


class ReshardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One reshard plan as it was carried out."""

    strategy: str
    measured_s: float
    """Median of the turns."""
    turns_s: tuple[float, ...]
    bound_s: float
    """Seconds that no plan is below on these links."""
    predicted_s: float
    equal: bool
    bytes_sent: int
    """Bytes that the plan sends between ranks."""
    bytes_between_hosts: int
    received_bytes: tuple[int, ...]
    """Bytes into the interface of each rank's host, headers included."""
    sent_bytes: tuple[int, ...]


class ReshardRun(msgspec.Struct, frozen=True, kw_only=True):
    """Reshard plans of the same tensors, carried out in turns; the first one is what was asked for."""

    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    ranks: int
    tensors: int
    turns: int
    measured_s: float
    bound_s: float
    predicted_s: float
    equal: bool
    """Whether every move gave every rank what slicing gives, bit for bit."""
    plans: dict[str, ReshardRecord]


class DeploymentTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks measured of a training under one deployment plan."""

    steps_s: list[float]
    """Seconds of each step on the rank that took longest."""
    bytes_sent: int
    """Bytes out of all interfaces in a step, headers included; 0: not counted."""
    loss_error: float
    """Largest difference to the losses of one process over the first steps, relative where these are above 1."""
    message_s: float = 0.0
    """Mean seconds of a message between two hosts that carries nothing, measured beside; 0: not measured."""


class DeploymentRecord(PredictedStep, frozen=True, kw_only=True):
    """A plan under which a model was trained."""

    bytes_sent: int
    """Bytes out of all interfaces in a step, headers included."""
    loss_equal: bool
    """Whether losses are those of one process to 1e-5."""
    loss_error: float
    steps_s: tuple[float, ...]


class DeploymentRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model trained on unequal hosts under several plans, in turns."""

    emulated: str
    """What was not real, in words."""
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
    """The first one is what the others are compared with."""
    fastest: str
    """Name of the plan with the shortest step."""
    speedup: float
    """Step of the first plan over that of tag, or of the fastest plan where tag is not among them."""


class ParallelTimes(msgspec.Struct, kw_only=True):
    """What the ranks measured of one way to train."""

    losses: list[float]
    """Loss of each of the first steps."""
    steps_s: list[float] = []
    """Duration of each measured step, of the slowest rank."""
    sent_bytes: list[int] = []
    """Bytes out of the interfaces of all hosts in each measured step, headers included; empty: not counted."""


class ParallelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train a model on several ranks."""

    step_s: float
    """Median of all turns."""
    steps_s: tuple[float, ...]
    predicted_step_s: float | None
    """Predicted seconds of a step; None: nothing was predicted of it."""
    bytes_sent: int | None
    """Bytes out of the interfaces of all hosts in a step, headers included; None: not counted."""
    predicted_bytes: int | None
    loss_equal: bool
    """Whether the losses of the first steps are those of one device."""
    loss_error: float
    """Largest difference of a loss from that of one device, as a share of it."""
    meaning: str = ""


class ParallelRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was trained on several ranks in several ways, in turns."""

    model: str
    parameters: int
    emulated: str
    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    turns: int
    capture_s: float
    """Seconds of capturing the model's step as a graph."""
    planning_s: float
    losses: tuple[float, ...]
    """Losses of one device."""
    plans: dict[str, ParallelRecord]
    """Ways to train, by name; `rhino` is the planned one."""
    fastest: str
    choices: dict[str, str] = {}
    """How the plan splits each block, in words."""
    why: tuple[str, ...] = ()
    """Reasons of the plan, and what it leaves whole."""
