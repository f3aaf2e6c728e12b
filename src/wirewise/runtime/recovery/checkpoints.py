"""Checkpoints, the last resort when all replicas of a state and all logs are lost.

A state is copied at once and written asynchronously (`save`). It is durable once every rank has its part on disk, as
agreed by all (`agree`); older ones are removed only then, and the previous one is kept, so that a damaged part costs
an interval and not the training (`load`).
"""

from __future__ import annotations

import os
import re
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from wirewise.errors import InputError
from wirewise.files import make_folder
from wirewise.runtime.points import notify_point
from wirewise.runtime.state_files import read_state, write_state
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import Tree, copy_into, pack

__all__ = ["CheckpointFolder"]

_NONE = -1
_NAME = re.compile(r"step-(\d+)\.rank-(\d+)\.state")


class CheckpointFolder:
    """Durable states of one rank in a folder.

    Args:
        folder: Folder on a disk, of this rank alone or of several ranks; created if missing.
        rank: Rank whose states they are.

    Attributes:
        durable_step: Newest step that every rank had on disk at the last `agree`; -1 for none. Logs of earlier steps
            may be deleted.

    Raises:
        InputError: The folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._folder, self._rank = make_folder(folder), rank
        self._writer = ThreadPoolExecutor(1, "wirewise-checkpoint")
        self._writing: Future[None] | None = None
        self._step = self._written = self.durable_step = _NONE
        self._memory: Tree = None

    def save(self, step: int, tree: Tree) -> None:
        """Copy a state and write it asynchronously, after waiting for the previous write.

        If the write fails, training continues, and the next call warns of what a failure would lose.

        Args:
            step: Step of the state.
            tree: State of this rank (`TrainingState.state_dict`).

        Raises:
            InputError: A value cannot be stored in a file.
        """
        pack(tree)
        self.wait()
        self._memory = copy_into(tree, self._memory)
        self._step = step
        self._writing = self._writer.submit(self._write, step, self._memory)

    def wait(self) -> None:
        """Wait until the last write has ended, successfully or not."""
        if self._writing is None:
            return
        try:
            self._writing.result()
            self._written = self._step
        except InputError as error:
            last = f"is of step {self._written}" if self._written != _NONE else "does not exist"
            warnings.warn(
                f"the checkpoint of step {self._step} is not written: {error}. The last one on disk {last}: a failure "
                "that leaves no replica would lose all after it",
                RuntimeWarning,
                stacklevel=3,
            )
        finally:
            self._writing = None

    def agree(self, transport: Transport, *, wait: bool = False) -> int:
        """Agree on the newest step durable on every rank, and remove old ones except the previous; a collective call.

        Args:
            transport: Transport between all ranks.
            wait: Whether to wait for a write in progress; otherwise it counts at a later call.

        Raises:
            PeerError: A peer is gone.
        """
        if wait or (self._writing is not None and self._writing.done()):
            self.wait()
        steps = transport.all_gather(torch.tensor([self._written]), "the steps of checkpoints")
        agreed = min(int(step) for step in steps)
        if agreed > self.durable_step:
            before, self.durable_step = self.durable_step, agreed
            for step in self.steps():
                if step < agreed and step != before:
                    self._path(step).unlink(missing_ok=True)
        return self.durable_step

    def load(self, transport: Transport) -> tuple[int, Tree]:
        """Load the newest state intact on every rank, with its step; later ones are removed; a collective call.

        Raises:
            InputError: No rank has any; the message says what was found.
            PeerError: A peer is gone.
        """
        states: dict[int, Tree] = {}
        wrong: list[str] = []
        step = self._newest(transport, _NONE)
        while step != _NONE:
            try:
                states = {step: read_state(self._path(step))}
            except InputError as error:
                wrong.append(str(error))
                states = {}
            good = transport.all_gather(torch.tensor([len(states)]), f"the checkpoint of step {step}")
            if all(bool(one) for one in good):
                self._written = self.durable_step = step
                for later in self.steps():
                    if later > step:
                        # A part of it must not complete one that is written from here on.
                        self._path(later).unlink(missing_ok=True)
                return step, states[step]
            bad = [rank for rank, one in enumerate(good) if not one]
            warnings.warn(
                f"the checkpoint of step {step} is damaged or missing on ranks {bad}, the one before it is tried; "
                "what was computed after that is lost",
                RuntimeWarning,
                stacklevel=2,
            )
            step = self._newest(transport, step)
        told = "; ".join(wrong) or f"{self._folder} holds the steps {self.steps()} of rank {self._rank}"
        raise InputError(
            f"no checkpoint is whole on all ranks: {told}; expected one, all that was computed is lost: start anew"
        )

    def newest(self) -> tuple[int, Tree] | None:
        """Newest intact state of this rank, with its step, for recomputing from logs. None if there is none."""
        self.wait()
        for step in reversed(self.steps()):
            try:
                return step, read_state(self._path(step))
            except InputError as error:
                warnings.warn(f"{error}; the one before it is tried", RuntimeWarning, stacklevel=2)
        return None

    def discard(self, before: int) -> None:
        """Remove this rank's states before a step, except the newest of them."""
        for step in [one for one in self.steps() if one < before][:-1]:
            self._path(step).unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """Steps of this rank's files, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match and int(match[2]) == self._rank)

    def close(self) -> None:
        """Wait for a write in progress, and end its thread."""
        self.wait()
        self._writer.shutdown()

    def _newest(self, transport: Transport, before: int) -> int:
        """Newest step before another that every rank has a file of; -1: none. Without `before` any step."""
        own = [step for step in self.steps() if before == _NONE or step < before]
        counts = transport.all_gather(torch.tensor([len(own)]), "numbers of checkpoints")
        padded = torch.full((max(int(count) for count in counts),), _NONE, dtype=torch.int64)
        padded[: len(own)] = torch.tensor(own, dtype=torch.int64)
        if not len(padded):
            return _NONE
        of_all = [set(steps.tolist()) for steps in transport.all_gather(padded, "steps of checkpoints")]
        return max(set.intersection(*of_all) - {_NONE}, default=_NONE)

    def _write(self, step: int, tree: Tree) -> None:
        notify_point("checkpoint", step)
        write_state(self._path(step), tree)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}.rank-{self._rank}.state"
