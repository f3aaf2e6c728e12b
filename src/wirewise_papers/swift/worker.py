"""The training of `script`, protected by three lines, as a rank or a spare that an agent has started.

Jobs other than a replicated model are in `swift_jobs`.

Batches are the same rows of the same dataset; ranks note their steps, and at the end a digest of their state.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from wirewise.files import write_json
from wirewise.runtime import recovery
from wirewise.runtime.trees import digest_of
from wirewise_papers.swift.kills import note_step
from wirewise_papers.swift.records import FinalState
from wirewise_papers.swift.script import dataset, model_of, optimizer_of

__all__ = ["main"]


def main(folder: Path) -> None:
    """Train until the last step, with recovery from failures of peers."""
    torch.set_num_threads(1)
    settings = json.loads((folder / "script.json").read_text())
    if settings["job"] != "ddp":
        from wirewise_papers.swift import jobs as swift_jobs

        swift_jobs.protected(folder, settings)
        return
    model = model_of(settings)
    optimizer = optimizer_of(settings, model.parameters())
    loader = DataLoader(dataset(settings["seed"]), settings["batch_size"], shuffle=True)
    training = recovery.protect(
        model,
        optimizer,
        loader,
        steps=settings["steps"],
        sync=recovery.Buckets(consistency=settings["consistency"]),
        seed=settings["seed"],
        ranks=recovery.Ranks(timeout_s=settings["timeout_s"]),
    )
    noted = 0
    for x, y in training:
        with training.step():
            nn.functional.cross_entropy(training.model(x), y).backward()
        if training.position > noted:
            noted = training.position
            note_step(folder, training.rank, noted)
        if noted == training.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            size = sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))
            found = FinalState(digest=digest_of(state), bytes=size)
            write_json(folder / f"final-{training.rank}.json", found)
