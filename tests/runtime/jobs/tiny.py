"""A job of a few numbers, whose ranks can be told to fail or to wait: `train` is what each of them calls."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from wirewise.runtime.jobs.training import train_resumably


class Counting:
    """Adds up the numbers of its steps over all ranks, each its share."""

    parts = ("sum", "count")

    def __init__(self, settings, transport, go):
        self.settings, self.transport, self.go = settings, transport, go
        self.sum, self.count = torch.zeros(1, dtype=torch.float64), torch.zeros(1)

    def step(self, number):
        if number == self.settings.get("fail_at") and self.transport.rank == 0:
            raise ValueError("this job always fails at its step")
        while number == self.settings.get("waits_at") and not self.go.exists():
            time.sleep(0.01)
        own = torch.full((1,), number / self.transport.world_size, dtype=torch.float64)
        self.transport.all_reduce(own, "the share of a step")
        self.sum += own
        self.count += 1
        time.sleep(self.settings["step_s"])

    def state(self):
        # Rank 1, where there is one, writes the sum: parts come from different ranks.
        both = {"count": {"of": self.count}}, {"sum": {"of": self.sum}}
        if self.transport.world_size == 1:
            return both[0] | both[1]
        return both[self.transport.rank] if self.transport.rank < 2 else {}

    def load(self, parts):
        self.sum, self.count = parts["sum"]["of"], parts["count"]["of"]

    def close(self):
        pass


def train(folder: Path) -> None:
    settings = json.loads((folder / "job.json").read_text())
    train_resumably(
        lambda transport: Counting(settings, transport, folder / "go"),
        folder,
        steps=settings["steps"],
        every_s=settings.get("every_s", 0.3),
        timeout_s=20.0,
    )
