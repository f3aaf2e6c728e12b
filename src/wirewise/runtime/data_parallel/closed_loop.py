"""Online trial of a plan in the running job, kept only if steps get measurably shorter."""

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
    """Outcome of a trial; the same on all ranks."""

    kept: bool
    gain_s: float
    """Mean saving per step, in seconds; negative if steps got slower."""
    ci95_s: tuple[float, float]
    """95 % interval of the gain, by Student's t over pairs of windows."""
    predicted_gain_s: float
    """Gain predicted by the proposal's planner, in seconds; 0 if not predicted."""
    present_step_s: tuple[float, ...]
    """Step time in each window under the current plan, mean over ranks, [pairs]."""
    proposed_step_s: tuple[float, ...]
    """Step time in each window under the proposal, mean over ranks, [pairs]."""
    source: str = "measured"


class Tuner:
    """Trial that alternates the job's own steps between the current and the proposed plan, then keeps the better one.

    Windows of steps alternate as ABBAABBA, so that neither a slow drift nor a change of load favours one. The
    proposal is kept if the whole interval of its gain is above 0; otherwise the current plan is restored. Steps end
    with `optimizer.step()`, where the decision is made too, the same on all ranks.

    Args:
        model: Model under the current plan, from `parallel`.
        optimizer: Optimizer of the model, stepped equally often on all ranks.
        proposal: Another plan for the same model and the same number of micro-steps.
        pairs: Windows per plan, at least 4.
        steps: Measured steps per window.
        warm: Warm-up steps at the start of a window, at least 1.
        clock: Function that returns the time in seconds.

    Raises:
        InputError: Too few windows or steps.
        PlanError: The proposal does not fit; the current plan stays in use.
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
        """Cancel the trial and keep the current plan; call it on all ranks at the same step."""
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
