"""Prediction for every plan: time of the job under it, and breakdown of the time."""

from __future__ import annotations

import inspect
from typing import Any

from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan
from wirewise.sim.lowering import LOWERINGS
from wirewise.sim.prediction import Prediction

__all__ = ["predict"]


def predict(plan: Plan, job: Any = None, links: Any = None, **conditions: Any) -> Prediction:
    """Simulate a unit of the job (a step, an epoch, a batch, a collective) under the plan.

    Every field of the plan counts, or is refused by its name. The result equals the prediction of this library's
    planner for the same job, links and conditions.

    Args:
        plan: Plan of any family.
        job: Description of the job, of a type that the family supports: a `ModuleTrace`, `Trace`, `GradientTrace` or
            `FusionGraph` for gradients; `ExchangeTimes` or None for bit widths; `BatchTimes` for cached rows; a
            `TaskSet` for placements; `StageTrace` for stages; the `OperatorGraph` of a step for parallel plans;
            `RecoveryTrace` for recovery; None for collectives.
        links: Links between the ranks. None if the conditions hold measured times of collectives.
        conditions: Measurements of codecs and kernels, by the parameter names of the family's lowering, such as
            `costs`.

    Raises:
        PlanError: The plan is inconsistent, of a family without a lowering, made for another job or number of ranks,
            or has a field that this type of job cannot express; the message names it.
        InputError: The job, links or conditions are of another type; the message names the expected ones.
    """
    plan.check_itself()
    lower = LOWERINGS.get(plan.family)
    if lower is None:
        raise PlanError(
            f"plans of family {plan.family!r} cannot be predicted; expected one of {', '.join(LOWERINGS)}"
        )
    known = list(inspect.signature(lower).parameters)[3:]
    if unknown := sorted(set(conditions) - set(known)):
        raise InputError(
            f"{unknown[0]!r} says nothing about a {plan.family} plan; it takes: {', '.join(known) or 'none'}"
        )
    return lower(plan, job, links, **conditions)
