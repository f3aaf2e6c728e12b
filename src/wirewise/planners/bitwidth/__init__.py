"""Planners that choose a bit width for every halo message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wirewise.cost import ExchangeCosts, LinkCost, Links
from wirewise.errors import PlanError
from wirewise.planners.bitwidth.auto import AutoDecision, auto, plan_channels
from wirewise.planners.bitwidth.distributed import distributed, plan_own_channels
from wirewise.planners.bitwidth.milp import milp
from wirewise.planners.bitwidth.paper import paper
from wirewise.planners.bitwidth.problem import (
    BitWidthProblem,
    ChannelProblem,
    ExchangeProblem,
    noise_factor,
)
from wirewise.planners.bitwidth.static import random, uniform
from wirewise.planners.bitwidth.threshold import threshold
from wirewise.plans import BitWidthPlan

__all__ = [
    "PLANNERS",
    "AutoDecision",
    "BitWidthProblem",
    "ChannelProblem",
    "ExchangeProblem",
    "noise_factor",
    "plan",
    "plan_channels",
    "plan_own_channels",
    "warm",
]

PLANNERS: dict[str, Callable[..., BitWidthPlan]] = {
    "auto": auto,
    "threshold": threshold,
    "distributed": distributed,
    "milp": milp,
    "paper": paper,
    "uniform": uniform,
    "random": random,
}
"""Planners by name: `(problem, costs, **knobs) -> BitWidthPlan`."""


def plan(
    problem: BitWidthProblem, costs: ExchangeCosts, *, method: str = "auto", **knobs: Any
) -> BitWidthPlan:
    """Plan with the planner of that name.

    Raises:
        PlanError: No planner has the name, or as that planner.
    """
    if method not in PLANNERS:
        raise PlanError(f"unknown planner {method!r}; expected one of: {', '.join(PLANNERS)}")
    return PLANNERS[method](problem, costs, **knobs)


def warm() -> None:
    """Compile the planners' kernels ahead (kept on disk), so that the first plan costs milliseconds."""
    link = LinkCost(latency_s=0.0, s_per_byte=1e-8)
    channels = [ChannelProblem(sender=s, receiver=1 - s, weights=np.array([3.0, 2.0, 1.0])) for s in (0, 1)]
    problem = BitWidthProblem(
        exchanges=[ExchangeProblem(name="forward1", width=8, channels=channels)], world_size=2
    )
    costs = ExchangeCosts(links=Links.of_pairs(link, 2))
    auto(problem, costs)
    threshold(problem, costs)
