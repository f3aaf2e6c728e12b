"""Job file of a pipeline run, which the parent writes for its ranks, and its plans."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.plans.timetables import eager_depths

__all__ = ["MODES", "OptimizerName", "PipelineJob", "module_names", "plan_of", "rate_factor"]

MODES: dict[str, tuple[str, str]] = {
    "flush": ("gpipe", "all forward passes, then all backward passes; waits for both between updates"),
    "1f1b": ("1f1b", "one forward pass for each backward pass; the pipeline empties between updates"),
    "eager": ("eager", "1F1B with more forward passes ahead, so that messages travel beside them"),
    "eager-split": ("eager-split", "eager, gradients of inputs leave before those of weights are computed"),
    "zero-bubble": ("zero-bubble", "1F1B, gradients of weights fill the idle time at the end"),
    "2bw": (
        "2bw",
        "two versions of the weights, never empties; gradients are one update old, which a correction makes up for; "
        "replicas exchange them beside the next update",
    ),
    "2bw-plain": ("2bw", "two versions of the weights, without the correction of old gradients"),
    "2bw-eager": (
        "2bw",
        "two versions of the weights, with more forward passes ahead, beside which messages travel",
    ),
    "2bw-blocking": (
        "2bw",
        "two versions of the weights; replicas exchange gradients before the next update",
    ),
}
"""Style of the timetable and meaning of each mode."""

OptimizerName = Literal["sgd", "adamw", "muon"]


class PipelineJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the ranks of a run; the first mode is the reference.

    Raises:
        InputError: A value is invalid.
        PlanError: A timetable is impossible, such as two versions with fewer microbatches than stages.
    """

    hosts: Annotated[opt.Count, opt.about("Hosts, one rank on each.")] = 4
    network: opt.HostNetwork = "auto"
    link: opt.Link = "200mbit"
    modes: Annotated[opt.Distinct, opt.about("Modes to train, the reference first.", words=tuple(MODES))] = (
        "flush",
        "1f1b",
        "eager",
        "2bw",
        "2bw-plain",
    )
    stages: Annotated[opt.Natural, opt.about("Stages of the model; 0: one for each host of a replica.")] = 0
    replicas: Annotated[opt.Count, opt.about("Data-parallel replicas of the pipeline.")] = 1
    microbatches: Annotated[opt.Count, opt.about("Microbatches of an update of the weights.")] = 4
    microbatch_size: Annotated[opt.Count, opt.about("Pieces of text in a microbatch.")] = 4
    length: Annotated[opt.Count, opt.about("Characters of a piece of text.")] = 32
    width: Annotated[int, opt.about("Width of the model; a multiple of 4.", ge=4)] = 96
    blocks: Annotated[opt.Count, opt.about("Transformer blocks of the model.")] = 8
    forward_ms: Annotated[
        float,
        opt.about("Milliseconds that a forward pass of a stage takes at least; the rest is slept.", ge=0),
    ] = 15.0
    backward_ms: Annotated[
        float, opt.about("Milliseconds that a backward pass of a stage takes at least.", ge=0)
    ] = 30.0
    updates: Annotated[int, opt.about("Updates of the weights in every mode.", ge=4)] = 60
    turns: Annotated[opt.Count, opt.about("Windows of each mode, interleaved.")] = 3
    optimizer: Annotated[OptimizerName, opt.about("Optimizer of all modes.")] = "adamw"
    learning_rate: Annotated[opt.Positive, opt.about("Peak learning rate.")] = 0.001
    warmup: Annotated[
        float,
        opt.about(
            "Warm-up of the learning rate as a fraction of all updates; it then decays to zero.", ge=0, le=1
        ),
    ] = 0.15
    clip: Annotated[float, opt.about("Gradient clipping by global norm; 0: none.", ge=0)] = 1.0
    delay_correction: Annotated[
        Literal["error_feedback", "nesterov", "none"],
        opt.about("Correction of delayed gradients, in all modes with two versions but 2bw-plain."),
    ] = "error_feedback"
    recompute: Annotated[bool, opt.about("Recompute activations in backward passes.")] = False
    seed: Annotated[opt.Seed, opt.about("Seed of weights and of the order of the text.")] = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.hosts % self.replicas
            or (self.stages or self.hosts // self.replicas) * self.replicas != self.hosts
        ):
            raise InputError(
                f"{self.stages or 'as many as fit'} stages in {self.replicas} replicas on {self.hosts} hosts; expected "
                "stages x replicas = hosts"
            )
        msgspec.structs.force_setattr(self, "stages", self.hosts // self.replicas)
        if self.stages > self.blocks:
            raise InputError(
                f"{self.blocks} blocks cannot be cut into {self.stages} stages; expected a block for each"
            )
        if self.width % 4:
            raise InputError(
                f"width is {self.width}; expected a multiple of 4, one for each head of attention"
            )
        if self.updates // self.turns < 3:
            raise InputError(
                f"{self.updates} updates in {self.turns} turns; expected at least 3 in a turn, the first of which "
                "fills the pipeline"
            )
        for mode in self.modes:
            plan_of(self, mode)


def module_names(blocks: int) -> list[str]:
    """Names of the model's modules in order."""
    return ["embedding", *(f"block{number}" for number in range(blocks)), "head"]


def plan_of(job: PipelineJob, mode: str) -> StagePlan:
    """Plan of balanced stages with the timetable of a mode."""
    style, _ = MODES[mode]
    more: dict[str, Any] = {"exchange": "hidden"} if style == "2bw" and mode != "2bw-blocking" else {}
    if mode == "2bw-eager":
        more["depths"] = eager_depths(job.stages, job.microbatches)
    cuts = [1 + job.blocks * number // job.stages for number in range(1, job.stages)]
    return StagePlan.from_cuts(
        module_names(job.blocks),
        cuts,
        style=style,
        microbatches=job.microbatches,
        microbatch_size=job.microbatch_size,
        replicas=job.replicas,
        recompute=job.recompute,
        **more,
    )


def rate_factor(job: PipelineJob, update: int) -> float:
    """Learning rate of an update relative to the maximum: linear warm-up, then decay to zero."""
    rising = round(job.warmup * job.updates)
    if update < rising:
        return (update + 1) / rising
    return 1.0 - (update - rising) / max(job.updates - rising, 1)
