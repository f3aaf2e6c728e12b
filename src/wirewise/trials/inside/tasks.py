"""What the ranks of an unmodified command do besides training, told by one environment variable."""

from __future__ import annotations

import os

import msgspec

from wirewise.profile import launch
from wirewise.trials.windows import turns

__all__ = ["SETTLING", "CarryOut", "Measure", "Record", "Task", "Try", "environment", "install"]

_ENTRY = "wirewise.trials.inside.tasks:install"
_VARIABLE = "WIREWISE_INSIDE"
SETTLING = 2
"""Steps after a change of plan that do not count."""


class Record(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """Record every rank; fields as of `profile.Tracer`."""

    folder: str
    warmup: int = 5
    steps: int | None = 30
    every: int = 1
    stop: bool = False
    """End the job when all steps are recorded, instead of letting it train on."""


class CarryOut(msgspec.Struct, frozen=True, kw_only=True, tag="carry-out"):
    """Train under a plan in place of DistributedDataParallel."""

    plan: str
    """File of a fusion plan."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Measure gradients, codecs and collectives after some steps of the script as it is; then end it."""

    file: str
    """File that takes a `measuring.Advised` of rank 0."""
    codecs: tuple[str, ...]
    ratio: float = 0.01
    warmup: int = 5
    steps: int = 20


class Try(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    """Train under several plans in turns; then end the script."""

    file: str
    """File that takes a `trying.Tried` of rank 0 after each window."""
    plans: dict[str, str]
    """Files of fusion plans, by name."""
    options: dict[str, dict[str, float]] = {}
    """Options of codecs, by codec."""
    windows: int = 2
    """Windows of each plan, in the order ABBA."""
    steps: int = 10
    """Measured steps of a window."""
    warmup: int = 5
    """Steps before those of the first window; a change of plan takes less."""

    @property
    def order(self) -> list[str]:
        """Plan of each window."""
        return [name for _, name in turns(list(self.plans), self.windows)]

    @property
    def script_steps(self) -> int:
        """Steps that the script has to make for all windows."""
        windows = len(self.order)
        # The first step of a window only tells when the second began.
        return windows * (self.steps + 1) + self.warmup + SETTLING * (windows - 1)


Task = Record | CarryOut | Measure | Try


def environment(*tasks: Task) -> dict[str, str]:
    """Environment variables with which every rank of a command begins tasks, in order, once it has imported torch."""
    return launch.environment({_ENTRY: {_VARIABLE: msgspec.json.encode(tasks).decode()}})


def install() -> None:
    """Begin the tasks that the environment names; called in every rank, before the script imports more of torch."""
    for task in msgspec.json.decode(os.environ[_VARIABLE], type=list[Task]):
        match task:
            case Record():
                from wirewise.trials.inside.recording import record

                record(task)
            case CarryOut():
                from wirewise.runtime.data_parallel.unmodified import carry_out, load_plan

                carry_out(load_plan(task.plan))
            case Measure():
                from wirewise.trials.inside.measuring import measure

                measure(task)
            case Try():
                from wirewise.trials.inside.trying import try_plans

                try_plans(task)
