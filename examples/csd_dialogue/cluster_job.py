"""Trainings of the dialogue model as jobs that clusters share, stopped and started again with other numbers of ranks.

    FILE=examples/csd_dialogue/cluster_job.py
    wirewise run tapfinger --kinds dialogue=$FILE:dialogue,labels=$FILE:labels

There are two kinds of jobs: "dialogue" trains the whole model, "labels" its encoders alone. Each rank calls the
function of its kind with the folder of the job, whose job.json has the number of steps.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from csd.generator import LEXICON, generate
from csd.model import DialogueModel, Sizes
from csd.samples import Samples, Settings, Vocabulary, samples_of, split
from wirewise.runtime.jobs import train_resumably

BATCH = 24
"""Samples of a step, which 1, 2, 3, 4, 6 and 8 ranks can share evenly."""


class DialogueTraining:
    """A training whose state any number of ranks takes over.

    Args:
        steps: Steps of the whole training.
        joint: Whether the decoder is trained too.
        transport: Messages between the ranks of the job.
    """

    parts = ("training",)

    def __init__(self, steps: int, joint: bool, transport) -> None:
        self.rank, self.ranks = transport.rank, transport.world_size
        training, _ = split(generate(80))
        vocabulary = Vocabulary(training)
        self.samples = Samples(
            samples_of(training, vocabulary, LEXICON, Settings()),
            Settings(), batch=BATCH, encoder_steps=0 if joint else steps, steps=steps,
        )  # fmt: skip
        self.samples.shares = self.ranks
        torch.manual_seed(0)
        self.bare = DialogueModel(Sizes(len(vocabulary)))
        self.model = self.bare
        if self.ranks > 1:
            self.model = DistributedDataParallel(self.bare, find_unused_parameters=not joint)
        self.optimizer = torch.optim.AdamW(self.bare.parameters(), lr=3e-3)

    def step(self, number: int) -> None:
        """Do a step; its dropout depends on the step and on the rank alone."""
        torch.manual_seed(number * self.ranks + self.rank)
        total = self.model(self.samples(number, self.rank)).total
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        if self.rank == 0:
            print(f"step {number}: loss {total.item():.4f}", flush=True)

    def state(self) -> dict:
        """Weights and optimizer, which all ranks have, by rank 0."""
        if self.rank:
            return {}
        return {"training": {"model": self.bare.state_dict(), "optimizer": self.optimizer.state_dict()}}

    def load(self, parts) -> None:
        """Take over weights and optimizer."""
        self.bare.load_state_dict(parts["training"]["model"])
        self.optimizer.load_state_dict(parts["training"]["optimizer"])

    def close(self) -> None:
        """Nothing is held."""


def dialogue(folder: Path) -> None:
    """Train the whole model as one rank of the job in a folder."""
    train(folder, joint=True)


def labels(folder: Path) -> None:
    """Train the encoders alone."""
    train(folder, joint=False)


def train(folder: Path, *, joint: bool) -> None:
    steps = json.loads((folder / "job.json").read_text())["steps"]
    train_resumably(partial(DialogueTraining, steps, joint), folder, steps=steps, every_s=5.0)
