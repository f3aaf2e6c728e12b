"""Record the first steps of a framework's trainer, and advise on them when training ends."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from wirewise.advice import Advice, advise
from wirewise.errors import InputError, WirewiseError
from wirewise.log import logger
from wirewise.profile import Tracer
from wirewise.trials.inside.tasks import TRIAL_VARIABLE

__all__ = ["FirstSteps"]

_log = logger("advice")


class FirstSteps:
    """Base class of callbacks that record the first steps of each rank, and advise on rank 0 when training ends.

    Training itself is unaffected, also if recording or advice fails, which is logged. In a run of `wirewise advise`
    they do nothing.

    Args:
        folder: Folder for the recorded run, `advice.json` and `advice.html`; shared by all ranks.
        warmup: Steps to skip before recording.
        steps: Steps to record.

    Raises:
        InputError: Fewer than two steps, or negative warm-up.
    """

    def __init__(
        self, folder: str | os.PathLike[str] = "runs/advice", *, warmup: int = 5, steps: int = 20
    ) -> None:
        if steps < 2 or warmup < 0:
            raise InputError(
                f"got {steps} steps after {warmup} of warm-up; expected at least 2 after 0 or more"
            )
        self.folder = Path(folder)
        self.warmup, self.steps = warmup, steps
        self.advice: Advice | None = None
        """Advice on rank 0. None on other ranks, and before training ends."""
        self._tracer: Tracer | None = None

    def begin(self) -> None:
        """Start recording; called on every rank, after `init_process_group` and before the first step."""
        if os.environ.get(TRIAL_VARIABLE):
            # A run of `wirewise advise` is recorded from outside.
            return
        try:
            self._tracer = Tracer(
                self.folder / "run", optimizer="first", warmup=self.warmup, steps=self.steps, forgiving=True
            )
            self._tracer.watch_all()
        except WirewiseError as error:
            _log.warning("no advice on this training, as it cannot be recorded: %s", error)

    def end(self) -> None:
        """Close the recording and advise; called on every rank when training is over."""
        tracer, self._tracer = self._tracer, None
        if tracer is None:
            return
        tracer.close()
        joined = dist.is_available() and dist.is_initialized()
        if joined:
            # Every rank's file is whole.
            dist.barrier()
        if not joined or dist.get_rank() == 0:
            self._advise()

    def abandon(self) -> None:
        """Close the recording without the other ranks, which may not reach their end."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.abandon()

    def _advise(self) -> None:
        try:
            self.advice = advise(self.folder / "run", folder=self.folder)
            page = self.advice.save(self.folder)
        except WirewiseError as error:
            _log.warning("no advice on this training: %s", error)
            return
        _log.info("%s %s Page: %s", self.advice.bound_reason, self.advice.advice, page)
