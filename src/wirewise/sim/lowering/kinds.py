"""Type checks of lowerings: jobs and links of the wrong type, and inexpressible fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan
from wirewise.plans.fusion import FusionPlan

__all__ = ["expect", "links_or_none", "refuse", "same_parameters", "same_ranks"]

Kind = TypeVar("Kind")


def expect(label: str, value: Any, kind: type[Kind], plan: Plan) -> Kind:
    """Return the value, if it has the expected type.

    Raises:
        InputError: The type is wrong; the message names the actual and the expected one.
    """
    if not isinstance(value, kind):
        got = "none" if value is None else f"a {type(value).__name__}"
        raise InputError(f"got {got} as the {label} of a {plan.family} plan; expected a {kind.__name__}")
    return value


def links_or_none(plan: Plan, links: Any) -> Links | None:
    """Return the links for the plan's number of ranks, or None if measured collective times replace them.

    Raises:
        InputError: The links are of another type.
        PlanError: The links are of another number of ranks.
    """
    if links is None:
        return None
    found = expect("links", links, Links, plan)
    same_ranks(plan, found.world_size, "the links have")
    return found


def same_ranks(plan: Plan, ranks: int, label: str) -> None:
    """Raise unless the plan is for this number of ranks.

    Raises:
        PlanError: The numbers differ; the message names both.
    """
    if plan.world_size != ranks:
        raise PlanError(
            f"the plan was made for world size {plan.world_size}, {label} {ranks} ranks; make the plan again for them"
        )


def same_parameters(names: Iterable[str], expected: Iterable[str]) -> None:
    """Raise unless a fusion plan's buckets contain exactly the gradients of the job.

    Raises:
        PlanError: The gradients differ; the message names some that only one of the two has.
    """
    own, there = set(names), set(expected)
    if own != there:
        more, fewer = sorted(own - there)[:3], sorted(there - own)[:3]
        raise PlanError(
            f"the buckets - at `$.buckets` - hold {more}, which the job has not, and lack {fewer}; make the plan again "
            "for this job"
        )


def refuse(plan: FusionPlan, decisions: Iterable[str], reason: str) -> None:
    """Raise if the plan makes one of these decisions (`FusionPlan.decisions`).

    Raises:
        PlanError: The plan makes such a decision; the message names its field.
    """
    for name in decisions:
        if name in plan.decisions:
            raise PlanError(f"{name} is {getattr(plan, name)!r} - at `$.{name}`; {reason}")
