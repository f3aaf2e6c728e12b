"""Replanning during training, when steps have got longer or shorter persistently."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import torch

from wirewise.errors import InputError
from wirewise.log import logger
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.exchanges import Exchanges
from wirewise.runtime.data_parallel.parallel import DataParallel
from wirewise.runtime.transport import Transport

__all__ = ["PlanSwap", "Replanner", "probe_all_reduce"]

_log = logger("data_parallel")
_PROBES = 5
_OTHER = 0.02
"""Fraction of a step by which a plan must be better: predicted, before it replaces the present one, and measured,
before the former one comes back."""

Planner = Callable[[float, FusionPlan], FusionPlan]


def probe_all_reduce(transport: Transport, size_bytes: int) -> float:
    """Measure the current time of an all-reduce, as a median in seconds; a collective call between two steps."""
    flat, seconds = torch.zeros(max(size_bytes // 4, 1)), []
    exchanges = Exchanges(transport, "the probe of the links")
    for _ in range(_PROBES):
        start_s = time.perf_counter()
        exchanges.all_reduce(flat)
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


class PlanSwap:
    """Change of a job's plan during training, by the same rule for everything that detects changed links.

    All ranks time an all-reduce together, and rank 0 makes a plan for links of that speed in a thread while training
    continues. If its predicted step is shorter by 2 % than the current plan's, all ranks switch to it between the same
    two steps, keeping error-feedback state. If steps then turn out to be longer by as much, the former plan is
    restored. If the planner fails, a warning is issued, and training continues under the current plan. Every rank makes
    one, and calls its methods between the same steps.

    Args:
        model: Model under the initial plan.
        planner: Function, called on rank 0 with the slowdown of an all-reduce and the current plan, that returns a
            plan; `planners.fusion.cupcake.replan.replanner` is one. The `baseline_step_s` of its result is the
            predicted step under the current plan, 0 if unknown.
        probe_bytes: Size of the timed all-reduce, in bytes.
        probe: Function that times the all-reduce.

    Attributes:
        changes: Step and slowdown of each request for a plan.

    Raises:
        InputError: The size is out of range.
    """

    def __init__(
        self,
        model: DataParallel,
        planner: Planner,
        *,
        probe_bytes: int = 1 << 18,
        probe: Callable[[Transport, int], float] = probe_all_reduce,
    ) -> None:
        if probe_bytes < 4:
            raise InputError(f"got probes of {probe_bytes} bytes; expected at least 4")
        self.model, self._planner, self._probe, self._probe_bytes = model, planner, probe, probe_bytes
        self.changes: list[tuple[int, float]] = []
        self._thread = ThreadPoolExecutor(1, "wirewise-replan")
        self._made: Future[FusionPlan] | None = None
        self._former: tuple[FusionPlan, float] | None = None
        self._at_first_s = self._slowest_probe()

    def close(self) -> None:
        """Stop planning."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def is_ready(self) -> bool:
        """Whether a requested plan is ready; known to rank 0 only."""
        return self._made is not None and self._made.done()

    def ask(self, step: int) -> None:
        """Make rank 0 plan for the current speed of the links; a collective call.

        Args:
            step: Number of the step, for `changes`.
        """
        slowdown = self._slowest_probe() / self._at_first_s
        self.changes.append((step, slowdown))
        _log.info("links take %.2f times as long as at the start; a plan for them is made", slowdown)
        if self.model.transport.rank == 0:
            self._made = self._thread.submit(self._planner, slowdown, self.model.plan)

    def change(self, step_s: float) -> bool:
        """Switch to the new plan, if its predicted step is shorter by 2 %; a collective call.

        Args:
            step_s: Seconds of a step under the current plan.

        Returns:
            Whether the plan changed; `settle` must then be called.
        """
        plan = self._from_first(self._outcome())
        if plan is None:
            return False
        self._former = self.model.plan, step_s
        self.model.use(plan)
        return True

    def settle(self, step_s: float) -> bool:
        """Keep the current plan, unless steps were shorter under the one that it replaced.

        Args:
            step_s: Seconds of a step under the current plan, the same on all ranks.

        Returns:
            Whether the former plan was restored.
        """
        former, self._former = self._former, None
        if former is None or former[1] >= step_s * (1 - _OTHER):
            return False
        self.model.use(former[0])
        return True

    def _outcome(self) -> FusionPlan | None:
        """The new plan, on rank 0 and if it is worth a change."""
        if self._made is None:
            return None
        made, self._made = self._made, None
        if (error := made.exception()) is not None:
            warnings.warn(
                f"the plan stays as it is, planning again failed: {error}", RuntimeWarning, stacklevel=2
            )
            return None
        plan, present = made.result(), self.model.plan
        better = plan.baseline_step_s == 0 or plan.predicted_step_s <= plan.baseline_step_s * (1 - _OTHER)
        return plan if better and plan.buckets != present.buckets else None

    def _from_first(self, plan: FusionPlan | None) -> FusionPlan | None:
        """Plan of rank 0, on all ranks."""
        text = self.model.transport.from_first(msgspec.json.encode(plan), "the new plan")
        return msgspec.json.decode(text, type=FusionPlan | None)

    def _slowest_probe(self) -> float:
        seconds = self._probe(self.model.transport, self._probe_bytes)
        return float(self.model.transport.slowest(seconds, "the probe of the links"))


class Replanner:
    """Monitor of a job's step times that swaps the plan when they differ persistently from the baseline.

        model = parallel(model, plan, optimizer)
        replanner = Replanner(model, optimizer, planner)

    Every `every` steps all ranks compare their steps. When the slowest rank's smoothed step has deviated by `drift`
    for `patience` steps, another plan is requested, as in `PlanSwap`. `wirewise.watch(..., replan=PlanSwap(...))`
    notices more, in windows.

    Args:
        model: Model under the initial plan.
        optimizer: Optimizer of the model, stepped equally often on all ranks.
        planner: Function that makes plans, as for `PlanSwap`.
        drift: Deviation that triggers replanning, as a fraction of the step.
        patience: Number of steps that a deviation must last.
        every: Number of steps between comparisons.
        smoothing: Weight of the newest step in the moving average.
        probe_bytes: Size of the timed all-reduce, in bytes.
        clock: Function that returns the time in seconds.
        probe: Function that times the all-reduce.

    Raises:
        InputError: An option is out of range.
    """

    def __init__(
        self,
        model: DataParallel,
        optimizer: torch.optim.Optimizer,
        planner: Planner,
        *,
        drift: float = 0.10,
        patience: int = 50,
        every: int = 10,
        smoothing: float = 0.1,
        probe_bytes: int = 1 << 18,
        clock: Callable[[], float] = time.perf_counter,
        probe: Callable[[Transport, int], float] = probe_all_reduce,
    ) -> None:
        if not 0 < drift < 1 or patience < 1 or every < 1 or not 0 < smoothing <= 1 or probe_bytes < 4:
            raise InputError(
                f"got drift {drift}, patience {patience}, every {every}, smoothing {smoothing} and probes of "
                f"{probe_bytes} bytes; expected a share below 1, at least 1 and 1 steps, a weight above 0 and at most "
                "1, and at least 4 bytes"
            )
        self._swap = PlanSwap(model, planner, probe_bytes=probe_bytes, probe=probe)
        self._transport, self._clock = model.transport, clock
        self._drift, self._patience, self._every, self._smoothing = drift, patience, every, smoothing
        self._steps = 0
        self._begin()
        self._handle = optimizer.register_step_post_hook(lambda *_: self._stepped())

    @property
    def changes(self) -> list[tuple[int, float]]:
        """Step and slowdown of each replanning."""
        return self._swap.changes

    def close(self) -> None:
        """Stop monitoring."""
        self._handle.remove()
        self._swap.close()

    def _begin(self) -> None:
        """Learn what a step takes now."""
        self._last_s: float | None = None
        self._seen: deque[float] = deque(maxlen=self._every)
        self._usual_s = self._mean_s = 0.0
        self._since = self._off = 0

    def _stepped(self) -> None:
        self._steps += 1
        now = self._clock()
        if self._last_s is not None:
            self._note(now - self._last_s)
        self._last_s = now
        if self._steps % self._every == 0:
            self._compare()
            # What the comparison took is no part of the next step.
            self._last_s = self._clock()

    def _note(self, seconds: float) -> None:
        self._since += 1
        self._seen.append(seconds)
        self._mean_s += self._smoothing * (seconds - self._mean_s) if self._mean_s else seconds

    def _compare(self) -> None:
        """Decide together: the slowest rank counts, and rank 0 says whether a plan is ready."""
        local = [self._mean_s, statistics.median(self._seen or [0.0]), self._swap.is_ready]
        mean_s, median_s, any_ready = self._transport.slowest(local, "the comparison of steps").tolist()
        if any_ready:
            self._swap.change(median_s)
            self._begin()
        elif self._usual_s == 0.0:
            # The first comparison under a plan may still hold its first, slow steps.
            if self._since >= 2 * self._every:
                self._accept(median_s)
        else:
            self._off = self._off + self._every if abs(mean_s / self._usual_s - 1) > self._drift else 0
            if self._off >= self._patience:
                # Once rank 0 has begun, steps are not compared until it is done.
                self._off = 0
                self._swap.ask(self._steps)

    def _accept(self, step_s: float) -> None:
        if self._swap.settle(step_s):
            self._begin()
        else:
            self._usual_s = step_s
