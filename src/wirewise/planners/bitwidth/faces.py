"""Planners of bit widths with the face of all: `ww.planners.bitwidth.auto(problem, links, codec=costs)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from wirewise.cost.codec import CodecCost
from wirewise.cost.exchange import ExchangeCosts
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.bitwidth.auto import auto
from wirewise.planners.bitwidth.distributed import distributed
from wirewise.planners.bitwidth.milp import milp
from wirewise.planners.bitwidth.paper import paper
from wirewise.planners.bitwidth.problem import BitWidthProblem
from wirewise.planners.bitwidth.static import random, uniform
from wirewise.planners.bitwidth.threshold import threshold
from wirewise.planners.faces import Planner, Problems, expect_links, face
from wirewise.plans import BitWidthPlan

__all__ = ["MAKERS", "PLANNERS"]

MAKERS: dict[str, Callable[..., BitWidthPlan]] = {
    "auto": auto,
    "threshold": threshold,
    "distributed": distributed,
    "milp": milp,
    "paper": paper,
    "uniform": uniform,
    "random": random,
}
"""Planners by name: `(problem, costs, **knobs) -> BitWidthPlan`, for costs that are known apart from the problem."""


def _on_links(
    job: BitWidthProblem,
    links: Links | None = None,
    *,
    codec: CodecCost | None = None,
    hidden_s: Mapping[str, Any] | None = None,
) -> BitWidthProblem:
    """The problem with costs of `ExchangeCosts`, from messages and their weights alone."""
    if job.costs is not None:
        raise InputError("the problem has costs, with links among them; give it alone, or without costs")
    costs = ExchangeCosts(
        links=expect_links(links), codec=codec or CodecCost(), hidden_s={} if hidden_s is None else hidden_s
    )
    return replace(job, costs=costs)


def _with_own_costs(make: Callable[..., BitWidthPlan]) -> Callable[..., BitWidthPlan]:
    @wraps(make)
    def plan(problem: BitWidthProblem, **knobs: Any) -> BitWidthPlan:
        if problem.costs is None:
            raise PlanError(
                "the problem has no costs; make it with BitWidthProblem(..., costs=ExchangeCosts(...)), or give "
                "its links"
            )
        return make(problem, problem.costs, **knobs)

    return plan


_PROBLEMS = Problems("messages of full-graph training", BitWidthProblem, {BitWidthProblem: _on_links})

PLANNERS: dict[str, Planner] = {
    name: face(_with_own_costs(make), name, _PROBLEMS, budget="time_limit_s" if make is milp else "")
    for name, make in MAKERS.items()
}
"""Planners by name."""
