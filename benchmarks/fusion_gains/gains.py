"""A rank of O1: trace stock DistributedDataParallel, plan, then measure both in turn; then let the tuner decide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import msgspec
import numpy as np
import ranks
import torch
import torch.distributed as dist
from workloads import Work, speeds

from wirewise.planners.fusion import Decision, FusionProblem, Scorer, from_trace
from wirewise.planners.fusion.dpro import dpro
from wirewise.planners.fusion.exhaustive import MOST_GRADIENTS, ddp, try_all
from wirewise.planners.fusion.search import capped
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime.data_parallel import Tuner, parallel

MOST_BUCKETINGS = 200


def gains(folder: Path, *, model: str, steps: int, pairs: int, window: int) -> dict[str, Any]:
    """Figures of one setting."""
    work = Work(folder="", model=model)
    stock = Loop(work, ranks.ddp)
    recorded = ranks.traced(folder / "trace", stock.wrapped, stock.optimizer, stock.step, steps)
    kind = tuple[FusionPlan, FusionPlan, dict]
    plan, present, simulated = ranks.from_first(lambda: _plans(from_trace(recorded)), kind)
    planned = Loop(work, plan=plan)
    times = {False: [], True: []}
    for place in range(2 * pairs):
        ours = place % 4 in (1, 2)
        times[ours].append(ranks.window((planned if ours else stock).step, 1, window))
    result = {
        **simulated,
        "ddp_s": ranks.mean_of_ranks(times[False]),
        "plan_s": ranks.mean_of_ranks(times[True]),
        "tuned": _tuned(work, present, plan, pairs, window),
    }
    if model == models.MANY:
        result["bad"] = _tuned(work, present, _alone(present), pairs, window)
    return result


class Loop:
    """A training loop of its own model, under DistributedDataParallel or under a plan."""

    def __init__(self, work: Work, wrap: Callable | None = None, plan: FusionPlan | None = None) -> None:
        inner, shape = models.make(work)
        self.optimizer = torch.optim.SGD(inner.parameters(), lr=1e-6)
        self.wrapped: Any = wrap(inner) if wrap else parallel(inner, plan, self.optimizer)
        self._pace = speeds(work, inner, dist.get_rank())
        self._x = torch.randn(shape, requires_grad=True)

    def step(self) -> None:
        next(self._pace)
        self.wrapped(self._x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _alone(plan: FusionPlan) -> FusionPlan:
    """Deliberately bad: every tensor in a bucket of its own."""
    size = 4 * models.ELEMENTS
    return msgspec.structs.replace(
        plan, buckets=tuple(Bucket(parameters=(p,), size_bytes=size) for p in plan.parameters)
    )


def _plans(problem: FusionProblem) -> tuple[FusionPlan, FusionPlan, dict[str, Any]]:
    """The plan, and stock DistributedDataParallel as a plan; and what replay says."""
    plan, present = dpro(problem), ddp(problem)
    best_s, tried = _best(problem)
    return (
        plan,
        present,
        {
            "wire_s": problem.wire.seconds(sum(problem.sizes)),
            "fixed_s": problem.wire.latency_s,
            "compute_s": sum(m.forward_s + m.backward_s for m in problem.modules),
            "gradients": len(problem.sizes),
            "recorded": len(problem.recorded),
            "buckets": [len(plan.buckets), sum(b.chunks for b in plan.buckets)],
            "baseline_s": plan.baseline_step_s,
            "predicted_s": plan.predicted_step_s,
            "best_s": best_s,
            "tried": tried,
        },
    )


def _best(problem: FusionProblem) -> tuple[float, int]:
    """Step of the best of all bucketings, or of so many where there are more."""
    count, scorer = len(problem.sizes), Scorer(problem)
    if count <= MOST_GRADIENTS:
        found = try_all(problem, scorer=scorer)
        return found.step_s, found.rounds
    random = np.random.default_rng(0)
    caps = np.geomspace(min(problem.sizes), sum(problem.sizes), MOST_BUCKETINGS // 2)
    options = [capped(problem, cap) for cap in caps.tolist()]
    while len(options) < MOST_BUCKETINGS:
        cuts = np.flatnonzero(random.random(count - 1) < random.uniform(0.0, 0.3)) + 1
        groups = np.split(np.arange(count), cuts)
        options.append(Decision(problem.spans([group.tolist() for group in groups])))
    return min(map(scorer, options)), len(options)


def _tuned(work: Work, present: FusionPlan, proposal: FusionPlan, pairs: int, window: int) -> dict[str, Any]:
    loop = Loop(work, plan=present)
    tuner = Tuner(loop.wrapped, loop.optimizer, proposal, pairs=pairs, steps=window, warm=2)
    while tuner.trial is None:
        loop.step()
    trial = tuner.trial
    assert loop.wrapped.plan == (proposal if trial.kept else present)
    present_s = float(np.mean(trial.present_step_s))
    return {
        "kept": trial.kept,
        "gain": trial.gain_s / present_s,
        "ci95": [s / present_s for s in trial.ci95_s],
    }
