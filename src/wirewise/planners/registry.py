"""All planners by family and name."""

from __future__ import annotations

from wirewise.errors import PlanError
from wirewise.planners import (
    bitwidth,
    cache,
    collective,
    fusion,
    jobs,
    parallel,
    pipeline,
    placement,
    recovery,
    reshard,
)
from wirewise.planners.faces import Planner
from wirewise.planners.placement import tag

__all__ = ["PLANNERS", "planner"]

PLANNERS: dict[str, dict[str, Planner]] = {
    "bitwidth": bitwidth.PLANNERS,
    "cache": cache.PLANNERS,
    "collective": collective.PLANNERS,
    "deployment": tag.PLANNERS,
    "fusion": fusion.PLANNERS,
    "jobs": jobs.PLANNERS,
    "parallel": parallel.PLANNERS,
    "placement": placement.PLANNERS,
    "recovery": recovery.PLANNERS,
    "reshard": reshard.PLANNERS,
    "stages": pipeline.PLANNERS,
}
"""Planners by family and name; the first of a family is its default."""


def planner(family: str, name: str) -> Planner:
    """Get a planner by family and name.

    Raises:
        PlanError: The family or the planner is unknown; the message lists those that exist.
    """
    if family not in PLANNERS:
        raise PlanError(f"unknown family of plans {family!r}; expected one of: {', '.join(PLANNERS)}")
    if name not in PLANNERS[family]:
        raise PlanError(f"unknown {family} planner {name!r}; expected one of: {', '.join(PLANNERS[family])}")
    return PLANNERS[family][name]
