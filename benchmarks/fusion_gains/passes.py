"""A rank of O4: trace, measure what modules keep, decide, then measure time and memory under every decision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import msgspec
import numpy as np
import ranks
import torch
import torch.distributed as dist

from wirewise.planners.fusion import Decision, FusionProblem, MemorySizes, from_trace, with_memory
from wirewise.planners.fusion.dpro import dpro
from wirewise.planners.fusion.search import baseline, make_plan
from wirewise.plans import FusionPlan
from wirewise.profile import memory_sizes
from wirewise.profile.memory import LiveBytes
from wirewise.runtime.data_parallel import parallel

MOST_ACCUMULATION = 4
BUDGET = 0.6
"""Share of the peak without a plan into which plans have to fit."""


def passes(folder: Path, *, model: str, steps: int, rounds: int, window: int) -> list[dict[str, Any]]:
    """Figures of every decision."""
    kinds = {
        "float32": {},
        "part": {"rows": models.ROWS // MOST_ACCUMULATION},
        "bfloat16": {"bfloat16": True},
    }
    recorded = {name: _traced(folder / name, model, steps, **kind) for name, kind in kinds.items()}
    plans = ranks.from_first(lambda: _plans(model, recorded), list[tuple[str, FusionPlan, bool]])
    loops = [Loop(model, plan) for _, plan, _ in plans]
    seconds = [[ranks.window(loop.step, 2, window) for loop in loops] for _ in range(rounds)]
    measured = [ranks.mean_of_ranks(list(own)) for own in zip(*seconds, strict=True)]
    return [
        {
            "name": name,
            "again": len(plan.recompute),
            "accumulation": plan.accumulation,
            "precision": plan.precision,
            "predicted_s": plan.predicted_step_s,
            "measured_s": own,
            "predicted_bytes": plan.predicted_memory_bytes,
            **loop.memory(),
        }
        for (name, plan, _), loop, own in zip(plans, loops, measured, strict=True)
    ]


def _traced(folder: Path, model: str, steps: int, rows: int = models.ROWS, bfloat16: bool = False) -> Any:
    inner = models.blocks(model)
    wrapped, optimizer = ranks.ddp(inner), torch.optim.Adam(inner.parameters(), lr=1e-4)
    x = models.batch(0, rows)

    def step() -> None:
        with _autocast(bfloat16):
            y = wrapped(x)
        y.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return ranks.traced(folder, wrapped, optimizer, step, steps)


def _autocast(on: bool) -> AbstractContextManager:
    return torch.autocast("cpu", dtype=torch.bfloat16) if on else nullcontext()


def _plans(model: str, recorded: dict[str, Any]) -> list[tuple[str, FusionPlan, bool]]:
    """Name, plan, and whether the planner chose it."""
    problem = _problem(model, {name: from_trace(own) for name, own in recorded.items()})
    plain = baseline(problem)
    every = sorted(problem.gradients)
    decisions = {
        "nothing": plain,
        "recompute every other": replace(plain, recompute=frozenset(every[::2])),
        "recompute all": replace(plain, recompute=frozenset(every)),
        "accumulate 2": replace(plain, accumulation=2),
        "accumulate 4": replace(plain, accumulation=MOST_ACCUMULATION),
        "bfloat16": replace(plain, precision="bfloat16"),
        "all three": Decision(
            plain.buckets, precision="bfloat16", recompute=frozenset(every[::2]), accumulation=2
        ),
    }
    found = [(name, make_plan(problem, one, planner="explicit"), False) for name, one in decisions.items()]
    budget = BUDGET * found[0][1].predicted_memory_bytes
    for extra in ("recompute", "accumulation"):
        passes = ("tensor_fusion", "partition", extra)
        chosen = dpro(problem, memory_budget_bytes=budget, passes=passes)
        found.append((f"dpro, {100 * BUDGET:.0f} % memory, {extra}", chosen, True))
    return found


def _problem(model: str, runs: dict[str, FusionProblem]) -> FusionProblem:
    problem, seconds = runs["float32"], {name: _compute_s(run) for name, run in runs.items()}
    sizes = memory_sizes(models.blocks(model), models.batch(0), bfloat16=True)
    less = {m.name: (m.forward_s, m.backward_s) for m in runs["bfloat16"].modules}
    timed = [replace(m, bfloat16_s=less.get(m.name)) for m in problem.modules]
    # Seconds of a share x of the batch: fixed + (1 - fixed) * x.
    x = 1.0 / MOST_ACCUMULATION
    fixed = float(np.clip((seconds["part"] / seconds["float32"] - x) / (1.0 - x), 0.0, 1.0))
    problem = replace(problem, modules=timed, fixed_share=fixed, most_accumulation=MOST_ACCUMULATION)
    return with_memory(problem, msgspec.convert(sizes, dict[str, MemorySizes]))


def _compute_s(problem: FusionProblem) -> float:
    return sum(m.forward_s + m.backward_s for m in problem.modules)


class Loop:
    """A training loop under a plan, with a model and an Adam of its own."""

    def __init__(self, model: str, plan: FusionPlan) -> None:
        self.inner = models.blocks(model)
        self.optimizer = torch.optim.Adam(self.inner.parameters(), lr=1e-4)
        self.wrapped = parallel(self.inner, plan, self.optimizer)
        self._count = 0

    def step(self) -> None:
        for _ in range(self.wrapped.plan.accumulation):
            self._count += 1
            x = models.batch(self._count, models.ROWS // self.wrapped.plan.accumulation)
            self.wrapped(x).square().mean().backward()
            del x
        self.optimizer.step()
        self.optimizer.zero_grad()

    def memory(self) -> dict[str, int]:
        """Peak of all storages in a step, and what of it is there all the time; largest of the ranks."""
        state = [t for own in self.optimizer.state.values() for t in own.values()]
        flats = [flat for bucket in self.wrapped.reducer.buckets for flat in bucket.flats]
        with LiveBytes([*self.inner.parameters(), *state, *flats]) as live:
            always = live.bytes
            self.step()
            both = torch.tensor([live.peak_bytes, always])
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return {"measured_bytes": int(both[0]), "always_bytes": int(both[1])}
