"""Plan again while training goes on, when steps have got longer or shorter for good."""

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

__all__ = ["Replanner", "probe_all_reduce"]

_log = logger("data_parallel")
_PROBES = 5
_OTHER = 0.02
"""Share of a step by which a plan must be better: predicted, before it replaces the present one, and measured, before
the former one comes back."""

Planner = Callable[[float, FusionPlan], FusionPlan]


def probe_all_reduce(transport: Transport, size_bytes: int) -> float:
    """Seconds of an all-reduce of so many bytes now, median; all ranks call it between two steps."""
    flat, seconds = torch.zeros(max(size_bytes // 4, 1)), []
    exchanges = Exchanges(transport, "the probe of the links")
    for _ in range(_PROBES):
        start_s = time.perf_counter()
        exchanges.all_reduce(flat)
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


class Replanner:
    """Watches the steps of a job, and has it planned again when they differ for long from what they were.

        model = parallel(model, plan, optimizer)
        replanner = Replanner(model, optimizer, planner)

    Every `every` steps all ranks compare their steps. When the slowest rank's smoothed step has been off by `drift` for
    `patience` steps, all ranks time an all-reduce together, and rank 0 makes a plan for links of that speed in a thread
    while training goes on. If it promises a step that is shorter by 2 % than the present plan's, all ranks change to it
    between the same two steps; what codecs remember stays. If steps then turn out to be longer by as much, the former
    plan comes back. If the planner fails, a warning says so, and training goes on under the present plan.

    Args:
        model: Under the first plan.
        optimizer: Optimizer of the model; all ranks step it equally often.
        planner: Makes a plan, on rank 0, when given how many times longer an all-reduce takes than it did at first, and
            the present plan; `planners.fusion.cupcake.replan.replanner` is one. The `baseline_step_s` of what it makes
            is what the present plan is predicted to take, 0 if that is not known.
        drift: Share of the step.
        patience: Steps that a difference must last.
        every: Steps between comparisons.
        smoothing: Weight of the newest step in the mean.
        probe_bytes: Bytes of the all-reduce that is timed.
        clock: Function that tells seconds.
        probe: Times the all-reduce.

    Attributes:
        changes: Step and slowdown of every time that it planned again.

    Raises:
        InputError: A knob out of range.
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
        self.model, self._planner, self._clock, self._probe = model, planner, clock, probe
        self._drift, self._patience, self._every, self._smoothing = drift, patience, every, smoothing
        self._probe_bytes = probe_bytes
        self.changes: list[tuple[int, float]] = []
        self._thread = ThreadPoolExecutor(1, "wirewise-replan")
        self._made: Future[FusionPlan] | None = None
        self._former: tuple[FusionPlan, float] | None = None
        self._steps = 0
        self._at_first_s = self._slowest_probe()
        self._begin()
        self._handle = optimizer.register_step_post_hook(lambda *_: self._stepped())

    def close(self) -> None:
        """Watch no more."""
        self._handle.remove()
        self._thread.shutdown(wait=False, cancel_futures=True)

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
        transport = self.model.transport
        ready = self._made is not None and self._made.done()
        local = [self._mean_s, statistics.median(self._seen or [0.0]), ready]
        mean_s, median_s, any_ready = transport.slowest(local, "the comparison of steps").tolist()
        if any_ready:
            self._change(median_s)
        elif self._usual_s == 0.0:
            # The first comparison under a plan may still hold its first, slow steps.
            if self._since >= 2 * self._every:
                self._accept(median_s)
        else:
            self._off = self._off + self._every if abs(mean_s / self._usual_s - 1) > self._drift else 0
            if self._off >= self._patience:
                self._ask()

    def _ask(self) -> None:
        """Have rank 0 plan for links as they are now; once it has begun, steps are not compared until it is done."""
        self._off = 0
        slowdown = self._slowest_probe() / self._at_first_s
        self.changes.append((self._steps, slowdown))
        _log.info("links take %.2f times as long as at the start; a plan for them is made", slowdown)
        if self.model.transport.rank == 0:
            self._made = self._thread.submit(self._planner, slowdown, self.model.plan)

    def _change(self, step_s: float) -> None:
        plan = self._from_first(self._outcome())
        if plan is not None:
            self._former = self.model.plan, step_s
            self.model.use(plan)
        self._begin()

    def _accept(self, step_s: float) -> None:
        """Go on with the present plan, unless steps were shorter under the one that it replaced."""
        former, self._former = self._former, None
        if former is not None and former[1] < step_s * (1 - _OTHER):
            self.model.use(former[0])
            self._begin()
        else:
            self._usual_s = step_s

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
        """What rank 0 has, on all ranks."""
        text = self.model.transport.from_first(msgspec.json.encode(plan), "the new plan")
        return msgspec.json.decode(text, type=FusionPlan | None)

    def _slowest_probe(self) -> float:
        seconds = self._probe(self.model.transport, self._probe_bytes)
        return float(self.model.transport.slowest(seconds, "the probe of the links"))
