"""All planners by family and name, with one face: `planner(problem, *, seed, time_budget_s, **knobs) -> Plan`.

What a problem is, is each family's: it holds costs and links. Here only the ways to call them are made alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from wirewise.errors import PlanError
from wirewise.planners import bitwidth, cache, collective, fusion, placement
from wirewise.planners.bitwidth import BitWidthProblem
from wirewise.planners.fusion import cupcake, disco
from wirewise.plans import BitWidthPlan, FusionPlan, Plan

__all__ = ["PLANNERS", "Planner", "planner"]


class Planner(Protocol):
    """A function from a problem to a plan."""

    def __call__(
        self, problem: Any, *, seed: int = 0, time_budget_s: float | None = None, **knobs: Any
    ) -> Plan:
        """Plan.

        Args:
            problem: What is decided on, of the family's type, costs and links included.
            seed: For what is drawn; recorded in the plan.
            time_budget_s: Seconds for the search; None: the planner's own.
            knobs: The planner's own.

        Raises:
            PlanError: No plan, or a time budget for a planner without a search.
        """
        ...


def planner(family: str, name: str) -> Planner:
    """The planner of that name.

    Raises:
        PlanError: No family or no planner is called so; the message lists those that are.
    """
    if family not in PLANNERS:
        raise PlanError(f"unknown family of plans {family!r}; expected one of: {', '.join(PLANNERS)}")
    if name not in PLANNERS[family]:
        raise PlanError(f"unknown {family} planner {name!r}; expected one of: {', '.join(PLANNERS[family])}")
    return PLANNERS[family][name]


def _face(make: Callable[..., Plan], name: str, budget: str = "") -> Planner:
    """The face of a call that takes the name of its method, and a time budget by the name `budget` if at all."""

    def plan(problem: Any, *, seed: int = 0, time_budget_s: float | None = None, **knobs: Any) -> Plan:
        if time_budget_s is not None and not budget:
            raise PlanError(f"planner {name!r} has no search that time could end; leave time_budget_s out")
        limit = {budget: time_budget_s} if time_budget_s is not None else {}
        return make(problem, method=name, seed=seed, **limit, **knobs)

    plan.__name__ = plan.__qualname__ = name
    return plan


def _bit_widths(problem: BitWidthProblem, *, method: str, **knobs: Any) -> BitWidthPlan:
    if problem.costs is None:
        raise PlanError(
            "the problem has no costs; make it with BitWidthProblem(..., costs=ExchangeCosts(...))"
        )
    return bitwidth.plan(problem, problem.costs, method=method, **knobs)


def _cached(problem: cache.CacheProblem, *, method: str, **knobs: Any) -> Plan:
    return cache.plan(problem, policy=method, **knobs)


def _by_rule(
    problem: cupcake.CompressionProblem, *, method: str, number: float | None = None, **knobs: Any
) -> FusionPlan:
    """`number` is what "even" and "bucket" are followed by."""
    return cupcake.plan_groups(problem, method=method if number is None else f"{method}:{number:g}", **knobs)


def _cupcake(problem: cupcake.CompressionProblem, *, method: str, **knobs: Any) -> FusionPlan:
    return cupcake.plan_groups(problem, method=method, **knobs)


def _operators(
    problem: disco.StepModel, *, method: str, seed: int, ranks: int = 2, other_s: float = 0.0, **knobs: Any
) -> FusionPlan:
    search = disco.Knobs(seed=seed, **knobs)
    return disco.plan_operators(problem, method=method, ranks=ranks, other_s=other_s, knobs=search).plan


def _named(make: Callable[..., Plan], names: Any, budgets: Mapping[str, str]) -> dict[str, Planner]:
    return {name: _face(make, name, budgets.get(name, "")) for name in names}


_SEARCHES = dict.fromkeys(("dpro", "mcmc", "exhaustive"), "time_budget_s")

PLANNERS: dict[str, dict[str, Planner]] = {
    "bitwidth": _named(_bit_widths, bitwidth.PLANNERS, {"milp": "time_limit_s"}),
    "cache": _named(_cached, cache.POLICIES, {}),
    "collective": _named(
        collective.plan,
        ("auto", *collective.PLANNERS),
        dict.fromkeys(("auto", *collective.PLANNERS), "time_limit_s"),
    ),
    "fusion": {
        **_named(fusion.plan, fusion.PLANNERS, _SEARCHES),
        **_named(_cupcake, ("cupcake",), {}),
        **_named(_by_rule, cupcake.RULES, {}),
        **_named(_operators, disco.METHODS, {}),
    },
    "placement": _named(placement.plan, placement.METHODS, {}),
}
"""By family, then by name."""
