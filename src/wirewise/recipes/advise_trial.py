"""Carries out several plans in turns inside an unmodified script, in place of DistributedDataParallel; then ends it.

`profile.launch.environment` has `install` called in every rank.
"""

from __future__ import annotations

import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from wirewise.files import atomic_file
from wirewise.plans import FusionPlan
from wirewise.profile.ending import end_process
from wirewise.runtime.data_parallel import Compression, DataParallel
from wirewise.runtime.data_parallel.unmodified import carry_out

__all__ = ["ENTRY", "VARIABLE", "TrialWish", "install", "read"]

ENTRY = "wirewise.recipes.advise_trial:install"
"""What the environment of a command names to have `install` called."""
VARIABLE = "WIREWISE_TRIAL"
"""Environment variable with the file of a `TrialWish`."""
_SETTLING = 2
"""Steps under another plan that do not count."""


class TrialWish(msgspec.Struct, frozen=True, kw_only=True):
    """What to try."""

    file: str
    """Rank 0 writes there, by plan, the seconds of a step: median, of the slowest rank."""
    plans: dict[str, FusionPlan]
    options: dict[str, dict[str, float]] = {}
    """Of codecs."""
    windows: int = 2
    """Of each plan; their order is turned round each time, so that a slow drift of the machine favours none."""
    steps: int = 10
    """Of a window, that count."""
    warmup: int = 5
    """Before those of the first window; a change of plan takes less."""

    @property
    def order(self) -> list[str]:
        """Plan of each window."""
        return [
            name for number in range(self.windows) for name in list(self.plans)[:: -1 if number % 2 else 1]
        ]


def install() -> None:
    """From now on the first model that DistributedDataParallel wraps is trained under the plans in turn."""
    wish = msgspec.json.decode(Path(os.environ[VARIABLE]).read_bytes(), type=TrialWish)
    trial = _Trial(wish)
    carry_out(wish.plans[wish.order[0]], Compression(options=wish.options), trial.begin)
    register_optimizer_step_post_hook(lambda *_: trial.after_step())


class _Trial:
    """One rank of the script."""

    def __init__(self, wish: TrialWish) -> None:
        self.wish = wish
        self.model: DataParallel | None = None
        self.windows = wish.order
        self.skipped = wish.warmup
        self.seconds: dict[str, list[float]] = {name: [] for name in wish.plans}
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
        if len(self.ends) <= self.skipped + self.wish.steps:
            return
        name = self.windows.pop(0)
        self.seconds[name] += (
            after - before for before, after in pairwise(self.ends[-self.wish.steps - 1 :])
        )
        if not self.windows:
            self._finish(self.model)
        if self.windows[0] != name:
            self.model.use(self.wish.plans[self.windows[0]])
        self.ends, self.skipped = [], _SETTLING

    def _finish(self, model: DataParallel) -> None:
        seconds = torch.tensor(list(self.seconds.values()), dtype=torch.float64)
        model.transport.all_reduce(seconds, "the exchange of measured times", dist.ReduceOp.MAX)
        if model.transport.rank == 0:
            medians = map(statistics.median, seconds.tolist())
            with atomic_file(self.wish.file) as file:
                file.write(msgspec.json.encode(dict(zip(self.seconds, medians, strict=True))))
        end_process()


def read(file: str | Path) -> dict[str, float]:
    """What rank 0 wrote."""
    return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, float])
