"""Options of fault-tolerant training, and of injected failures."""

from __future__ import annotations

from typing import Annotated, Literal

from wirewise import options as opt
from wirewise.errors import InputError

__all__ = ["MICROBATCHES", "WAYS", "JobName", "SwiftJob", "script_settings"]

JobName = Literal["ddp", "pipeline", "full-graph"]

MICROBATCHES = 4
"""Number of microbatches of a pipeline's batch."""
_STRATEGIES = {"ddp": ("auto", "replica"), "pipeline": ("auto", "log"), "full-graph": ("auto",)}

WAYS: dict[str, str] = {
    "protected": "under an agent on each host, which starts ranks and spares; one takes the place of a dead rank",
    "checkpoint": "the unmodified script with a checkpoint every few steps, restarted by torchrun",
    "commit": "survivors go back to a commit in their own memory, as in Elastic Horovod; a cold process joins them",
}
"""Meaning of each recovery method; the first is the reference."""


class SwiftJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the processes of a run.

    Raises:
        InputError: A value is invalid.
    """

    job: Annotated[
        JobName,
        opt.about(
            "What is trained: ddp, a model that every rank has whole; pipeline, a stage of one on each rank; "
            "full-graph, a graph net on a part of the graph on each rank."
        ),
    ] = "ddp"
    hosts: Annotated[int, opt.about("Hosts to use, one rank on each.", ge=2)] = 3
    link: opt.Link = "1gbit"
    network: opt.HostNetwork = "auto"
    kills: Annotated[opt.Natural, opt.about("Ranks that are killed, one after the other.")] = 3
    steps: Annotated[int, opt.about("Steps of every training.", ge=20)] = 200
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], opt.about("Optimizer of all trainings.")] = "adamw"
    consistency: Annotated[
        Literal["auto", "roll-forward", "ping-pong", "undo", "journal"],
        opt.about("How a step that only some ranks have taken is made consistent."),
    ] = "auto"
    strategy: Annotated[
        Literal["auto", "replica", "log", "checkpoint"], opt.about("Where lost state is recovered from.")
    ] = "auto"
    spares: Annotated[opt.Natural, opt.about("Warm spare processes on each host.")] = 1
    width: Annotated[opt.Count, opt.about("Width of the hidden layer, of each stage of a pipeline.")] = 1024
    dropout: opt.Dropout = 0.1
    batch_size: Annotated[opt.Count, opt.about("Rows of a rank's batch, or of that of a pipeline.")] = 32
    learning_rate: opt.LearningRate = 0.001
    against: Annotated[
        tuple[str, ...],
        opt.about("Baselines of recovery, by default all; commit for ddp alone.", words=tuple(WAYS)[1:]),
    ] = ()
    seed: Annotated[opt.Seed, opt.about("Seed of weights, data and kills.")] = 0
    timeout_s: opt.Timeout = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kills > self.steps:
            raise InputError(
                f"kills is {self.kills} and steps {self.steps}; expected no more kills than steps, as one strikes only "
                "after a step has followed the one before"
            )
        if self.strategy not in (allowed := _STRATEGIES[self.job]):
            raise InputError(
                f"strategy is {self.strategy!r} and job {self.job!r}; expected {' or '.join(allowed)}: replicas of a "
                "ddp job are copied, stages of a pipeline recomputed from logs, parts of a graph taken from memory"
            )
        if self.job != "ddp" and self.consistency != "auto":
            raise InputError(
                f"consistency is {self.consistency!r} and job {self.job!r}; expected auto: a rank begins anew what was "
                "under way"
            )
        if self.job != "ddp" and "commit" in self.against:
            raise InputError(f"against is {','.join(self.against)} and job {self.job!r}; expected checkpoint")
        if self.job == "pipeline" and self.batch_size % MICROBATCHES:
            raise InputError(
                f"batch_size is {self.batch_size} and job 'pipeline'; expected a multiple of {MICROBATCHES} "
                "microbatches"
            )

    @property
    def others(self) -> tuple[str, ...]:
        """Baselines: the selected ones, or all that the job supports."""
        return self.against or (("checkpoint", "commit") if self.job == "ddp" else ("checkpoint",))


def script_settings(job: SwiftJob, *, every: int) -> dict[str, object]:
    """Settings that `script` and `commit` read; `every` is the steps between checkpoints or commits, 0 for none."""
    return {
        "job": job.job,
        "seed": job.seed,
        "width": job.width,
        "dropout": job.dropout,
        "optimizer": job.optimizer,
        "learning_rate": job.learning_rate,
        "batch_size": job.batch_size,
        "steps": job.steps,
        "timeout_s": job.timeout_s,
        "ranks": job.hosts,
        "every": every,
        "consistency": job.consistency,
        "spares": job.spares,
    }
