"""Save and resume a trainer so that the next epochs are bit-identical.

Dropout, stochastic rounding and boundary sampling are functions of (seed, epoch), so there is no generator
state to
save: weights, optimizer, bit tables, traces and rows that were received but not used yet are all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from wirewise.errors import InputError
from wirewise.files import atomic_file, make_folder
from wirewise.runtime.full_graph.trainer import Trainer

__all__ = ["latest", "load", "save"]

_FORMAT = 1


def save(trainer: Trainer, folder: str | os.PathLike) -> Path:
    """Write this rank's file of the checkpoint of the current epoch; every rank must call it.

    The file appears complete or not at all.

    Raises:
        InputError: The folder cannot be written.
    """
    path = _file(folder, trainer.epoch, trainer.transport.rank)
    state = {
        "format": _FORMAT,
        "world_size": trainer.transport.world_size,
        "mode": trainer.mode.name,
        "seed": trainer.options.seed,
        "epoch": trainer.epoch,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "lanes": {
            name: {"width": lane.width, "state": lane.state_dict()}
            for name, lane in trainer.exchange.training_lanes().items()
        },
        "bits": trainer.bits.state_dict(),
    }
    make_folder(path.parent)
    with atomic_file(path) as file:
        torch.save(state, file)
    return path


def latest(folder: str | os.PathLike, world_size: int) -> int | None:
    """The newest epoch of which every rank's file is there, or None."""
    epochs = []
    for path in Path(folder).glob("epoch-*"):
        match = re.fullmatch(r"epoch-(\d+)", path.name)
        if match and all((path / f"rank-{r}.pt").exists() for r in range(world_size)):
            epochs.append(int(match[1]))
    return max(epochs, default=None)


def load(trainer: Trainer, folder: str | os.PathLike, epoch: int) -> None:
    """Put a fresh trainer where the saved one was.

    Raises:
        InputError: The file is missing, damaged, or of another world size, mode or seed.
    """
    path = _file(folder, epoch, trainer.transport.rank)
    try:
        state = torch.load(path, weights_only=False)
    except Exception as error:
        raise InputError(
            f"cannot read the checkpoint {path}: {error}; expected a file written by `checkpoint.save`. "
            "Resume from an earlier epoch"
        ) from error
    found = {key: state.get(key) for key in ("format", "world_size", "mode", "seed")}
    expected = {
        "format": _FORMAT,
        "world_size": trainer.transport.world_size,
        "mode": trainer.mode.name,
        "seed": trainer.options.seed,
    }
    if found != expected:
        raise InputError(
            f"{path} holds {found}; this job expects {expected}. Start it with the same settings"
        )
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.epoch = state["epoch"]
    for name, saved in state["lanes"].items():
        direction, layer = re.fullmatch(r"([a-z]+)(\d+)", name).groups()  # type: ignore[union-attr]
        trainer.exchange.lane(direction, int(layer), saved["width"]).load_state_dict(saved["state"])
    trainer.bits.load_state_dict(state["bits"])


def _file(folder: str | os.PathLike, epoch: int, rank: int) -> Path:
    return Path(folder) / f"epoch-{epoch:06d}" / f"rank-{rank}.pt"
