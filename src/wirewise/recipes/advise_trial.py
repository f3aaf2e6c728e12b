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

__all__ = ["ENTRY", "VARIABLE", "TrialWish", "Tried", "install", "read"]

ENTRY = "wirewise.recipes.advise_trial:install"
"""What the environment of a command names to have `install` called."""
VARIABLE = "WIREWISE_TRIAL"
"""Environment variable with the file of a `TrialWish`."""
_SETTLING = 2
"""Steps under another plan that do not count."""


class TrialWish(msgspec.Struct, frozen=True, kw_only=True):
    """What to try."""

    file: str
    """Rank 0 writes a `Tried` there, after each window."""
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

    @property
    def script_steps(self) -> int:
        """How many steps the script has to make for all windows."""
        windows = len(self.order)
        # The first step of a window only tells when the second began.
        return windows * (self.steps + 1) + self.warmup + _SETTLING * (windows - 1)


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured until the last window that was whole."""

    windows: int
    """How many were whole."""
    steps_s: dict[str, float]
    """Seconds of a step by plan: median, of the slowest rank; without plans that had no whole window."""


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
        self._write(self.model)
        if not self.windows:
            end_process()
        if self.windows[0] != name:
            self.model.use(self.wish.plans[self.windows[0]])
        self.ends, self.skipped = [], _SETTLING

    def _write(self, model: DataParallel) -> None:
        """A script may end before all windows: what was measured until then counts."""
        known = {name: own for name, own in self.seconds.items() if own}
        medians = torch.tensor([statistics.median(own) for own in known.values()], dtype=torch.float64)
        model.transport.all_reduce(medians, "the exchange of measured times", dist.ReduceOp.MAX)
        if model.transport.rank == 0:
            done = len(self.wish.order) - len(self.windows)
            found = Tried(windows=done, steps_s=dict(zip(known, medians.tolist(), strict=True)))
            with atomic_file(self.wish.file) as file:
                file.write(msgspec.json.encode(found))


def read(file: str | Path) -> Tried:
    """What rank 0 wrote."""
    return msgspec.json.decode(Path(file).read_bytes(), type=Tried)
