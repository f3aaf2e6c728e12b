"""Arguments of `protect` other than the reduction: parts of the state, checkpoints, and how ranks run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Self

from torch.optim.lr_scheduler import LRScheduler

from wirewise.errors import InputError
from wirewise.runtime.recovery.refusals import check_objects
from wirewise.runtime.recovery.state import Stateful

__all__ = ["Checkpoints", "Ranks", "State"]


@dataclass(frozen=True, kw_only=True)
class State:
    """State of a training other than model and optimizers, and gradient clipping.

    Args:
        schedulers: Schedules of the learning rates, stepped once per update.
        scaler: A `torch.amp.GradScaler` of the script.
        objects: Further objects whose state changes with training and is the same on all ranks, by name. They may
            change within the block, after it, or in a function of `Training.on_commit`.
        clip: Largest norm of all gradients together. None for no clipping.

    Raises:
        InputError: An object whose state cannot be sent, or a clip that is not above 0.
    """

    schedulers: Sequence[LRScheduler] = ()
    scaler: Stateful | None = None
    objects: Mapping[str, Stateful] | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.schedulers, Sequence):
            raise InputError(
                f"got schedulers={type(self.schedulers).__name__}; expected schedules in a list, such as [scheduler]"
            )
        if not isinstance(self.objects or {}, Mapping):
            raise InputError(
                f"got objects={type(self.objects).__name__}; expected objects by name, as {{'ema': ema}}"
            )
        if self.clip is not None and not self.clip > 0:
            raise InputError(
                f"got clip={self.clip}; expected a norm above 0, or None to leave gradients as they are"
            )
        check_objects({**(self.objects or {}), **({} if self.scaler is None else {"scaler": self.scaler})})


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints for when all replicas are lost, and for a job that is started again.

    Args:
        folder: Folder on a disk that all hosts see.
        every: Updates from one checkpoint to the next.
        accept_changes: Properties of the job, such as "lr" or "steps", that may differ from those of the job whose
            checkpoints are resumed. A difference in any other is refused by its name.

    Raises:
        InputError: No folder, an interval below 1, or one name in place of a list.
    """

    folder: str | os.PathLike[str]
    _: KW_ONLY
    every: int = 100
    accept_changes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise InputError(f"got Checkpoints({self.folder!r}); expected the path of a folder")
        if self.every < 1:
            raise InputError(f"got every={self.every}; expected at least 1 update between checkpoints")
        if isinstance(self.accept_changes, str):
            raise InputError(f"got accept_changes={self.accept_changes!r}; expected names in a list")

    @classmethod
    def of(cls, argument: Self | str | os.PathLike[str]) -> Self:
        """Checkpoints as given, or the defaults for a folder."""
        return argument if isinstance(argument, cls) else cls(argument)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Options of ranks: their devices, limits of waits for each other, and the interval between comparisons.

    Args:
        device: Type of the device that the model is moved to once this process has its role, such as "cuda", of which
            each rank of a host has one. Defaults to that of the model.
        backend: Backend that reduces gradients. Defaults to "nccl" if the model is on CUDA, else "gloo".
        timeout_s: Limit of one call of the process group, in seconds.
        compare_every: Steps from one comparison of the replicas to the next; a difference is raised with its name.
            Defaults to an interval at which comparisons take less than 0.5 % of the time.

    Raises:
        InputError: A limit or interval that is not positive.
    """

    device: str | None = None
    backend: str | None = None
    timeout_s: float = 60.0
    compare_every: int | None = None

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise InputError(f"got timeout_s={self.timeout_s}; expected seconds above 0")
        if self.compare_every is not None and self.compare_every < 1:
            raise InputError(f"got compare_every={self.compare_every}; expected at least 1, or None")
