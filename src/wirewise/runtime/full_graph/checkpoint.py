"""Save and resume a trainer so that the next epochs are bit-identical.

Dropout, stochastic rounding and boundary sampling are functions of (seed, epoch), so there is no generator state to
save, only weights, optimizer, bit tables, traces, measured costs and received but unused rows. They are stored as
tensors, numbers and strings only (`to_plain`), and a file with anything else is refused before any of it runs: a
checkpoint from elsewhere can spoil a training, but not do more.

A folder holds the checkpoints of one trainer: `epoch-000010/rank-0.pt` and so on. A checkpoint is complete if it has
the files of exactly the ranks of the job.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from wirewise.errors import InputError
from wirewise.files import make_folder
from wirewise.runtime.full_graph.plain import from_plain, to_plain
from wirewise.runtime.full_graph.trainer import Trainer
from wirewise.runtime.state_files import read_state, write_state

__all__ = ["discard", "latest", "load", "prune", "ranks_by_epoch", "restore", "save", "state_of"]

_FORMAT = 4


def save(trainer: Trainer, folder: str | os.PathLike, *, extra: Mapping[str, Any] | None = None) -> Path:
    """Write this rank's file of the checkpoint of the current epoch; every rank must call it.

    The file is written atomically.

    Args:
        trainer: Trainer to save.
        folder: Folder of this trainer's checkpoints; created if missing.
        extra: Values for `load` to return: numbers, strings, arrays and tensors by name.

    Raises:
        InputError: The folder is not writable.
    """
    path = _file(folder, trainer.epoch, trainer.transport.rank)
    make_folder(path.parent)
    write_state(path, state_of(trainer) | {"extra": to_plain(extra or {})})
    return path


def state_of(trainer: Trainer) -> dict[str, Any]:
    """State on which the next epochs of this rank depend, as plain data; weights are references.

    Messages in flight (stale modes) are waited for: received but unused rows are included, so that they survive the
    loss of sender and receiver.

    Raises:
        PeerError: A peer is gone.
    """
    return {
        **_identity(trainer),
        "epoch": trainer.epoch,
        # A decision on bits may be due before the model has used any.
        "hoods": list(trainer.tensors.neighbourhood_kinds),
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "lanes": to_plain(
            {
                name: {"width": lane.width, "state": lane.state_dict()}
                for name, lane in trainer.exchange.training_lanes().items()
            }
        ),
        "bits": to_plain(trainer.bits.state_dict()),
    }


def restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Restore the state from `state_of` in a new trainer.

    Raises:
        InputError: The state is of another world size, mode, seed or partition, or damaged.
    """
    expected = _identity(trainer)
    found = {key: state.get(key) for key in expected}
    if found != expected:
        raise InputError(
            f"the state holds {found}; this job expects {expected}. Start it with the same settings"
        )
    try:
        _take(trainer, state)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        raise InputError(
            f"the state does not fit this job: {type(error).__name__}: {error}; expected one that `state_of` gave in "
            "the same job"
        ) from error


def prune(trainer: Trainer, folder: str | os.PathLike, *, keep: int = 2) -> None:
    """Remove this rank's files of all but the newest `keep` checkpoints; a collective call after `save`.

    Nothing is removed before every rank has saved, so that a complete checkpoint exists at any time.

    Raises:
        PeerError: A rank is dead or hung.
    """
    trainer.transport.all_reduce(torch.zeros(1, device=trainer.tensors.device), "checkpoint")
    rank = trainer.transport.rank
    own = sorted(epoch for epoch, ranks in ranks_by_epoch(folder).items() if rank in ranks)
    for epoch in own[:-keep]:
        _remove(_file(folder, epoch, rank))


def discard(folder: str | os.PathLike, *, after: int = -1) -> None:
    """Remove all ranks' files of checkpoints of epochs later than `after`.

    A run that resumes from an earlier epoch calls it first, so that its files do not complete leftovers of another
    run.
    """
    for epoch, ranks in ranks_by_epoch(folder).items():
        if epoch > after:
            for rank in ranks:
                _remove(_file(folder, epoch, rank))


def ranks_by_epoch(folder: str | os.PathLike) -> dict[int, set[int]]:
    """Ranks with a file, for each epoch."""
    found: dict[int, set[int]] = {}
    for path in Path(folder).glob("epoch-*/rank-*.pt"):
        match = re.fullmatch(r"epoch-(\d{6,})/rank-(\d+)\.pt", f"{path.parent.name}/{path.name}")
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    return found


def latest(folder: str | os.PathLike, world_size: int) -> int | None:
    """Newest epoch with the files of exactly `world_size` ranks. None if there is none."""
    every = set(range(world_size))
    return max((epoch for epoch, ranks in ranks_by_epoch(folder).items() if ranks == every), default=None)


def load(trainer: Trainer, folder: str | os.PathLike, epoch: int) -> dict[str, Any]:
    """Restore a saved state into a new trainer; returns the `extra` passed to `save`.

    Raises:
        InputError: The file is missing, damaged, holds code, or is of another world size, mode, seed or partition.
    """
    path = _file(folder, epoch, trainer.transport.rank)
    state = read_state(path)
    if not isinstance(state, dict):
        raise InputError(
            f"cannot read the checkpoint {path}: it holds a {type(state).__name__}; expected a file written by "
            "`checkpoint.save`. Remove its folder to go on from the checkpoint before it"
        )
    try:
        restore(trainer, state)
        return dict(from_plain(state["extra"]))
    except (InputError, KeyError) as error:
        raise InputError(
            f"the checkpoint {path}: {error}. Remove its folder to go on from the checkpoint before it"
        ) from error


def _take(trainer: Trainer, state: Mapping[str, Any]) -> None:
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.epoch = state["epoch"]
    for kind in state.get("hoods", ()):
        trainer.tensors.neighbourhood(kind)
    for name, saved in from_plain(state["lanes"]).items():
        direction, layer = re.fullmatch(r"([a-z]+)(\d+)", name).groups()  # type: ignore[union-attr]
        trainer.exchange.lane(direction, int(layer), saved["width"]).load_state_dict(saved["state"])
    trainer.bits.load_state_dict(from_plain(state["bits"]))


def _identity(trainer: Trainer) -> dict[str, Any]:
    """Properties that a checkpoint and the trainer that takes it must have in common."""
    return {
        "format": _FORMAT,
        "world_size": trainer.transport.world_size,
        "mode": trainer.mode.name,
        "seed": trainer.options.seed,
        "parts": trainer.tensors.part.fingerprint,
    }


def _file(folder: str | os.PathLike, epoch: int, rank: int) -> Path:
    return Path(folder) / f"epoch-{epoch:06d}" / f"rank-{rank}.pt"


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    # The last rank to leave takes the folder with it; until then it is not empty.
    with contextlib.suppress(OSError):
        path.parent.rmdir()
