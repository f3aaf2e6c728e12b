"""DisCo (TPDS 2022): joint search for operator fusion and all-reduce fusion.

Fusing operators saves launches and moves fewer bytes, but holds back the gradients in a fused region, so that less
communication overlaps with compute. Fusing all-reduces saves latencies but holds back the early ones. Compilers
decide the two in sequence; here one search decides both by the simulated step.
"""

from __future__ import annotations

from typing import NamedTuple

from wirewise.errors import PlanError
from wirewise.planners.fusion.disco.estimator import ChosenCosts, Estimator, LearnedCosts, costs_for
from wirewise.planners.fusion.disco.model import Region, State, StepModel, Times
from wirewise.planners.fusion.disco.search import BUCKETS, FUSIONS, Knobs, SearchResult, baselines, search
from wirewise.plans.fusion import Bucket, FusionPlan
from wirewise.sim.region_costs import AnalyticCosts, RegionCosts, Roofline, fit

__all__ = [
    "EAGER",
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

METHODS = ("disco", *(f"{fusion}+{rule}" for fusion in FUSIONS for rule in BUCKETS))
"""The search, and baselines as fusion+buckets."""

EAGER = ("none", "default")
"""The baseline without a plan: no fusion, buckets of DistributedDataParallel."""


class PlannedOperators(NamedTuple):
    """Plan, its simulated step, and statistics of the search."""

    plan: FusionPlan
    times: Times
    baselines: dict[tuple[str, str], Times]
    """Times of baselines by fusion and rule of buckets."""
    found: SearchResult | None
    """Result of the search. None if there was none."""
    unfused: Times
    """Times with the buckets of the plan and no fused region: of operators whose times were measured."""


def plan_operators(
    model: StepModel,
    *,
    method: str = "disco",
    other_s: float = 0.0,
    knobs: Knobs | None = None,
) -> PlannedOperators:
    """Choose operator regions and gradient buckets that minimise the simulated step (DisCo, TPDS 2022).

    Args:
        model: Captured step, with the costs of regions and all-reduces.
        method: One of `METHODS`.
        other_s: Seconds of a step outside the graph, such as the optimizer.
        knobs: Options of the search.

    Raises:
        PlanError: The method is unknown, or raised by `FusionPlan.check_itself`.
    """
    if method not in METHODS:
        raise PlanError(f"unknown planner {method!r}; expected one of: {', '.join(METHODS)}")
    knobs, found = knobs or Knobs(), None
    if method == "disco":
        found = search(model, knobs)
        state, known = found.state, found.baselines
    else:
        states, (fusion, _, rule) = baselines(model), method.partition("+")
        state = states[fusion, rule]
        known = {name: model.times(one) for name, one in states.items()}
    plan = plan_of(
        model,
        state,
        planner=method,
        other_s=other_s,
        seed=knobs.seed,
        baseline_s=known[EAGER].step_s,
    )
    unfused = model.times(model.with_buckets(model.alone(), model.buckets(state)))
    return PlannedOperators(plan, model.times(state), known, found, unfused)


def plan_of(
    model: StepModel,
    state: State,
    *,
    planner: str,
    other_s: float = 0.0,
    seed: int = 0,
    baseline_s: float = 0.0,
) -> FusionPlan:
    """Build the plan of a state; it names all regions, also those of one operator, to fix the launch order.

    Its lower bound is the communication bound: everything as one all-reduce.
    """
    operators = model.graph.operators
    buckets = []
    for group in model.buckets(state):
        own = [operators[model.arrays.gradients[gradient]] for gradient in group]
        names = tuple(one.gradient for one in own)
        buckets.append(Bucket(parameters=names, size_bytes=sum(one.output_bytes for one in own)))
    plan = FusionPlan(
        world_size=model.ranks,
        planner=planner,
        seed=seed,
        buckets=tuple(buckets),
        regions=tuple(tuple(operators[i].name for i in one.operators) for one in model.regions(state)),
        predicted_step_s=model.times(state).step_s + other_s,
        baseline_step_s=baseline_s + other_s if baseline_s else 0.0,
        lower_bound_s=model.all_reduce.seconds(float(model.arrays.size_bytes.sum())) + other_s,
    )
    plan.check_itself()
    return plan
