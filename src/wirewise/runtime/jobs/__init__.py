"""Execution of job queues: time slots, launch and end of ranks, and trainings that resume with other resources."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wirewise.runtime.jobs.speeds import SpeedModel, step_table

if TYPE_CHECKING:
    from wirewise.runtime.jobs.executor import QueueExecutor
    from wirewise.runtime.jobs.launcher import JobLauncher, JobReport
    from wirewise.runtime.jobs.training import Progress, ResumableTraining, SharedStates, train_resumably

_LATER = {
    "executor": ("QueueExecutor",),
    "launcher": ("JobLauncher", "JobReport"),
    "training": ("Progress", "ResumableTraining", "SharedStates", "train_resumably"),
}
"""Names by module that need torch, which the process of a host leaves to its forkserver."""

__all__ = [
    "JobLauncher",
    "JobReport",
    "Progress",
    "QueueExecutor",
    "ResumableTraining",
    "SharedStates",
    "SpeedModel",
    "step_table",
    "train_resumably",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
