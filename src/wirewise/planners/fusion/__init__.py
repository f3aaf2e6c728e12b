"""Planners that choose the buckets of gradients, and what else changes a step of data-parallel training."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from wirewise.errors import PlanError
from wirewise.planners.fusion.dpro import dpro
from wirewise.planners.fusion.exhaustive import ddp, exhaustive, rules
from wirewise.planners.fusion.mcmc import mcmc
from wirewise.planners.fusion.memory import peak_bytes
from wirewise.planners.fusion.moves import PASSES
from wirewise.planners.fusion.problem import FusionProblem, from_flows, from_trace, read_gradients
from wirewise.planners.fusion.score import Scorer
from wirewise.plans import FusionPlan
from wirewise.sim.modules import Decision
from wirewise.sim.recorded import MemorySizes, with_memory
from wirewise.trace.modules import BucketSpan, Module

__all__ = [
    "PASSES",
    "PLANNERS",
    "BucketSpan",
    "Decision",
    "FusionProblem",
    "MemorySizes",
    "Module",
    "Scorer",
    "cupcake",
    "disco",
    "from_flows",
    "from_trace",
    "peak_bytes",
    "plan",
    "read_gradients",
    "with_memory",
]

PLANNERS: dict[str, Callable[..., FusionPlan]] = {
    "dpro": dpro,
    "mcmc": mcmc,
    "exhaustive": exhaustive,
    "rules": rules,
    "ddp": ddp,
}
"""Planners by name: `(problem, **knobs) -> FusionPlan`."""


def plan(problem: FusionProblem, *, method: str = "dpro", **knobs: Any) -> FusionPlan:
    """Plan with the planner of that name.

    Raises:
        PlanError: No planner has the name, or as that planner.
    """
    if method not in PLANNERS:
        raise PlanError(f"unknown planner {method!r}; expected one of: {', '.join(PLANNERS)}")
    return PLANNERS[method](problem, **knobs)


def __getattr__(name: str) -> Any:
    # Two searches with problems of their own, which others than dPRO's users need not load.
    if name in ("cupcake", "disco"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
