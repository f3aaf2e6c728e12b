"""Try a plan in the running job, and keep it only if steps get measurably shorter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from wirewise.cost.intervals import gain_of
from wirewise.errors import InputError, PlanError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.parallel import DataParallel

__all__ = ["Trial", "Tuner"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a proposal; the same on all ranks."""

    kept: bool
    gain_s: float
    """Mean of what a step got shorter; below 0: it got longer."""
    ci95_s: tuple[float, float]
    """Interval of the gain, by Student's t over pairs of windows."""
    predicted_gain_s: float
    """Gain that the proposal's planner predicts; 0: none."""
    present_step_s: tuple[float, ...]
    """Time of a step in each window under the present plan, mean of the ranks, [pairs]."""
    proposed_step_s: tuple[float, ...]
    """Time of a step in each window under the proposal, mean of the ranks, [pairs]."""
    source: str = "measured"


class Tuner:
    """Runs the job's own steps under the present and the proposed plan in turn, then keeps the better one.

    Windows of steps alternate as ABBAABBA, so that neither a slow drift nor a change of load favours one. The
    proposal stays if its whole interval of the gain is above 0; otherwise the present plan comes back. Steps
    count when `optimizer.step()` ends; the decision falls there too, on all ranks alike.

    Args:
        model: A model under the present plan, from `parallel`.
        optimizer: Optimizer of the model; ranks step it equally often.
        proposal: Another plan for the same model and the same number of micro-steps.
        pairs: Windows under each plan, at least 4.
        steps: Steps in the time of a window.
        warm: Steps at the beginning of a window that do not count, at least 1.
        clock: Function that tells seconds.

    Raises:
        InputError: Too few windows or steps.
        PlanError: The proposal does not fit; the present plan goes on.
    """

    def __init__(
        self,
        model: DataParallel,
        optimizer: torch.optim.Optimizer,
        proposal: FusionPlan,
        *,
        pairs: int = 8,
        steps: int = 5,
        warm: int = 2,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if pairs < 4 or steps < 1 or warm < 1:
            raise InputError(
                f"got {pairs} pairs of {steps} steps after {warm}; expected at least 4 pairs, 1 step and 1 warm step"
            )
        if proposal.accumulation != model.plan.accumulation:
            raise PlanError(
                f"the proposal accumulates {proposal.accumulation} micro-steps, the job {model.plan.accumulation}; "
                "that is up to the training loop: propose a plan with the same accumulation"
            )
        self.model, self.present, self.proposal = model, model.plan, proposal
        self.trial: Trial | None = None
        """None until it is over."""
        self._steps, self._warm, self._clock = steps, warm, clock
        self._order = [bool(place % 4 in (1, 2)) for place in range(2 * pairs)]
        self._periods: list[float] = []
        self._ends: list[float] = []
        # Whether the proposal fits shows now, not in the middle of the trial.
        model.use(proposal)
        model.use(self.present)
        self._handle = optimizer.register_step_post_hook(self._stepped)

    def cancel(self) -> None:
        """End the trial without a decision; the present plan goes on. On all ranks at the same step."""
        if self.trial is None:
            self._handle.remove()
            self.model.use(self.present)

    def _stepped(self, *_: Any) -> None:
        self._ends.append(self._clock())
        if len(self._ends) < self._warm + self._steps:
            return
        self._periods.append((self._ends[-1] - self._ends[self._warm - 1]) / self._steps)
        self._ends = []
        if len(self._periods) == len(self._order):
            self._decide()
        elif self._order[len(self._periods)] != self._order[len(self._periods) - 1]:
            self.model.use(self.proposal if self._order[len(self._periods)] else self.present)

    def _decide(self) -> None:
        self._handle.remove()
        periods = self.model.transport.mean(self._periods, "the comparison of step times")
        proposed = np.array(self._order)
        gain = gain_of(periods[~proposed] - periods[proposed])
        self.trial = Trial(
            kept=gain.kept,
            gain_s=gain.mean,
            ci95_s=gain.ci95,
            predicted_gain_s=self.proposal.predicted_gain_s,
            present_step_s=tuple(periods[~proposed].tolist()),
            proposed_step_s=tuple(periods[proposed].tolist()),
        )
        self.model.use(self.proposal if self.trial.kept else self.present)
