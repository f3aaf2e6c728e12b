"""Planners that choose a bit width for every halo message."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirewise.cost import ExchangeCosts, LinkCost, Links
from wirewise.errors import PlanError
from wirewise.planners.bitwidth.auto import AutoDecision, plan_channels
from wirewise.planners.bitwidth.distributed import plan_own_channels
from wirewise.planners.bitwidth.faces import MAKERS, PLANNERS
from wirewise.planners.bitwidth.problem import (
    BitWidthProblem,
    ChannelProblem,
    ExchangeProblem,
    noise_factor,
)
from wirewise.plans import BitWidthPlan

__all__ = [
    "PLANNERS",
    "AutoDecision",
    "BitWidthProblem",
    "ChannelProblem",
    "ExchangeProblem",
    "auto",
    "distributed",
    "milp",
    "noise_factor",
    "paper",
    "plan",
    "plan_channels",
    "plan_own_channels",
    "random",
    "threshold",
    "uniform",
    "warm",
]


def plan(
    problem: BitWidthProblem, costs: ExchangeCosts, *, method: str = "auto", **knobs: Any
) -> BitWidthPlan:
    """Plan with the planner of that name.

    Raises:
        PlanError: No planner has the name, or as that planner.
    """
    if method not in MAKERS:
        raise PlanError(f"unknown planner {method!r}; expected one of: {', '.join(MAKERS)}")
    return MAKERS[method](problem, costs, **knobs)


def warm() -> None:
    """Compile the planners' kernels ahead (kept on disk), so that the first plan costs milliseconds."""
    link = LinkCost(latency_s=0.0, s_per_byte=1e-8)
    channels = [ChannelProblem(sender=s, receiver=1 - s, weights=np.array([3.0, 2.0, 1.0])) for s in (0, 1)]
    problem = BitWidthProblem(
        exchanges=[ExchangeProblem(name="forward1", width=8, channels=channels)], world_size=2
    )
    costs = ExchangeCosts(links=Links.of_pairs(link, 2))
    plan(problem, costs, method="auto")
    plan(problem, costs, method="threshold")


# The functions stand before the modules of the same names, which keep what else there is of each.
auto, distributed, milp, paper = (PLANNERS[name] for name in ("auto", "distributed", "milp", "paper"))
random, threshold, uniform = (PLANNERS[name] for name in ("random", "threshold", "uniform"))
