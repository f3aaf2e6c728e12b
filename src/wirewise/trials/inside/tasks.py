"""Tasks of the ranks of an unmodified command, passed in one environment variable."""

from __future__ import annotations

import os

import msgspec

from wirewise.profile import launch
from wirewise.trials.windows import alternate

__all__ = [
    "SETTLING",
    "Measure",
    "Record",
    "Restart",
    "RunPlan",
    "Task",
    "TryPlans",
    "environment",
    "install",
]

_ENTRY = "wirewise.trials.inside.tasks:install"
_VARIABLE = "WIREWISE_INSIDE"
TRIAL_VARIABLE = "WIREWISE_TRIAL"
"""Variable that tells a script that its run is a trial, which ends early, so that it can skip checkpoints and
loggers."""
SETTLING = 2
"""Number of steps after a change of plan that are not counted."""


class Record(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """Task that records every rank; fields as in `profile.Tracer`."""

    folder: str
    warmup: int = 5
    steps: int | None = 30
    every: int = 1
    stop: bool = False
    """Whether to end the job when all steps are recorded, instead of training on."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, tag="carry-out"):
    """Task that trains under a plan in place of DistributedDataParallel."""

    plan: str
    """File of a fusion plan."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Task that measures gradients, codecs and collectives after some steps of the unchanged script, and then ends it.

    A recording slows steps down, so the measured steps come after it.
    """

    file: str
    """File for rank 0's `cost.gradients.TrainingMeasurements`."""
    codecs: tuple[str, ...]
    ratio: float = 0.01
    warmup: int = 5
    steps: int = 20
    record: Record | None = None
    """Recording that runs first; the script ends with it if it wraps no model before."""


class TryPlans(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    """Task that trains under several plans alternately, and then ends the script."""

    file: str
    """File for rank 0's `trying.TrialMeasurements`, written after each window."""
    plans: dict[str, str]
    """Files of fusion plans, by name."""
    options: dict[str, dict[str, float]] = {}
    """Options of codecs, by codec."""
    windows: int = 2
    """Number of windows of each plan, in the order ABBA."""
    steps: int = 10
    """Number of measured steps of a window."""
    warmup: int = 5
    """Number of steps before the first window; a change of plan needs fewer."""

    @property
    def order(self) -> list[str]:
        """Plan of each window, in order."""
        return [name for _, name in alternate(list(self.plans), self.windows)]

    @property
    def script_steps(self) -> int:
        """Number of script steps needed for all windows."""
        windows = len(self.order)
        # The first step of a window only tells when the second began.
        return windows * (self.steps + 1) + self.warmup + SETTLING * (windows - 1)


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag="restart"):
    """Task that times steps of the script with changed arguments of its own calls, and then ends it."""

    folder: str
    """Folder for a `restarting.RestartResult` per rank."""
    arguments: dict[str, bool | int | float | str] = {}
    """Changed arguments, by name as in `changing.change`. Empty for the unchanged script."""
    warmup: int = 5
    steps: int = 10


Task = Record | RunPlan | Measure | TryPlans | Restart


def environment(*tasks: Task, trial: str = "") -> dict[str, str]:
    """Environment variables that make every rank of a command begin tasks once it has imported torch.

    Args:
        tasks: Tasks of each rank.
        trial: Name of the trial, which the script can read from the variable WIREWISE_TRIAL. Defaults to none.
    """
    named = {TRIAL_VARIABLE: trial} if trial else {}
    if all(isinstance(task, Record) for task in tasks):
        # A tracer begins with a group or a step of an optimizer, so one that spawns ranks itself is recorded, too.
        named[launch.FOLLOW_SPAWNED] = "1"
    return launch.environment({_ENTRY: {_VARIABLE: msgspec.json.encode(tasks).decode(), **named}})


def install() -> None:
    """Begin the tasks that the environment names; called in every rank, before the script imports more of torch."""
    for task in msgspec.json.decode(os.environ[_VARIABLE], type=list[Task]):
        match task:
            case Record():
                from wirewise.trials.inside.recording import record

                record(task)
            case RunPlan():
                from wirewise.runtime.data_parallel.unmodified import load_plan, wrap_ddp

                wrap_ddp(load_plan(task.plan))
            case Measure():
                from wirewise.trials.inside.measuring import measure

                measure(task)
            case TryPlans():
                from wirewise.trials.inside.trying import try_plans

                try_plans(task)
            case Restart():
                from wirewise.trials.inside.restarting import time_steps

                time_steps(task)
