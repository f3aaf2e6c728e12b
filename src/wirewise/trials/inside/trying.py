"""Alternating execution of several plans inside an unmodified script, in place of DistributedDataParallel."""

from __future__ import annotations

import itertools
import statistics
import time
from itertools import pairwise

import msgspec
from torch.optim.optimizer import register_optimizer_step_post_hook

from wirewise.files import write_json
from wirewise.profile.ending import end_process
from wirewise.runtime.data_parallel import Compression, DataParallel
from wirewise.runtime.data_parallel.unmodified import load_plan, wrap_ddp
from wirewise.trials.inside.tasks import SETTLING, TryPlans

__all__ = ["TrialMeasurements", "try_plans"]


class TrialMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements up to the last complete window."""

    windows: int
    """Number of complete windows."""
    steps_s: dict[str, float]
    """Median step time on the slowest rank, by plan; only plans with a complete window."""
    seconds: dict[str, list[float]] = {}
    """Seconds of each step by plan, of the slowest rank."""


def try_plans(task: TryPlans) -> None:
    """Train the first model that DistributedDataParallel wraps and the plans fit, under the plans alternately."""
    trial = _Trial(task)
    wrap_ddp(trial.plans[task.order[0]], Compression(options=task.options), trial.begin, skip_others=True)
    register_optimizer_step_post_hook(lambda *_: trial.after_step())


class _Trial:
    """One rank of the script."""

    def __init__(self, task: TryPlans) -> None:
        self.task = task
        self.plans = {name: load_plan(file) for name, file in task.plans.items()}
        self.model: DataParallel | None = None
        self.windows = task.order
        self.skipped = task.warmup
        self.seconds: dict[str, list[float]] = {name: [] for name in task.plans}
        self.ends: list[float] = []

    def begin(self, model: DataParallel) -> None:
        """Try the plans with the first model that is wrapped."""
        if self.model is None:
            self.model = model

    def after_step(self) -> None:
        """The optimizer is done; after the last step of a window take the next plan, after the last window end."""
        if self.model is None:
            return
        self.ends.append(time.perf_counter())
        if len(self.ends) <= self.skipped + self.task.steps:
            return
        name = self.windows.pop(0)
        self.seconds[name] += (
            after - before for before, after in pairwise(self.ends[-self.task.steps - 1 :])
        )
        self._write(self.model)
        if not self.windows:
            end_process()
        if self.windows[0] != name:
            self.model.use(self.plans[self.windows[0]])
        self.ends, self.skipped = [], SETTLING

    def _write(self, model: DataParallel) -> None:
        """A script may end before all windows: what was measured until then counts."""
        known = {name: own for name, own in self.seconds.items() if own}
        medians = model.transport.slowest([statistics.median(own) for own in known.values()])
        flat = model.transport.slowest([value for own in known.values() for value in own]).tolist()
        ends = list(itertools.accumulate(len(own) for own in known.values()))
        steps = {name: flat[end - len(known[name]) : end] for name, end in zip(known, ends, strict=True)}
        if model.transport.rank == 0:
            done = len(self.task.order) - len(self.windows)
            found = TrialMeasurements(
                windows=done, steps_s=dict(zip(known, medians.tolist(), strict=True)), seconds=steps
            )
            write_json(self.task.file, found)
