"""DisCo (TPDS 2022): fusion of operators and of all-reduces, searched together.

Fusing operators saves launches and moves fewer bytes, but holds back the gradients in a fused region, so that less of
their communication runs beside computing. Fusing all-reduces saves latencies and holds back the early ones. Compilers
decide on the two one after the other; here one search decides on both by the simulated step.
"""

from __future__ import annotations

from wirewise.planners.fusion.disco.estimator import ChosenCosts, Estimator, LearnedCosts, costs_for
from wirewise.planners.fusion.disco.model import Region, State, StepModel, Times
from wirewise.planners.fusion.disco.plan import METHODS, PlannedOperators, plan_of, plan_operators
from wirewise.planners.fusion.disco.search import Knobs, SearchResult, search
from wirewise.sim.region_costs import AnalyticCosts, RegionCosts, Roofline, fit

__all__ = [
    "METHODS",
    "AnalyticCosts",
    "ChosenCosts",
    "Estimator",
    "Knobs",
    "LearnedCosts",
    "PlannedOperators",
    "Region",
    "RegionCosts",
    "Roofline",
    "SearchResult",
    "State",
    "StepModel",
    "Times",
    "costs_for",
    "fit",
    "plan_of",
    "plan_operators",
    "search",
]
