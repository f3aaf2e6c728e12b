"""Lowering of deployment plans to a step on unequal devices."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans.deployment import DeployedGroup, DeploymentPlan
from wirewise.sim.deployments import (
    ALLREDUCE,
    DUPLICATE,
    MP,
    PHASES,
    PS,
    DeploymentSimulator,
    DeploymentStep,
    Spread,
)
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.stages import StageTrace
from wirewise.units import format_size

__all__ = ["WAYS", "lower_deployment", "spread_of"]

WAYS = {"allreduce": ALLREDUCE, "ps": PS, "duplicate": DUPLICATE, "mp": MP}
"""Codes of the methods of gradient exchange."""


def lower_deployment(
    plan: DeploymentPlan, job: Any, links: Any, *, profiles: Mapping[str, StageTrace] | None = None
) -> Prediction:
    """Simulate a step; see `predict`.

    Args:
        plan: Plan of the modules of the job.
        job: The `StageTrace` of the model.
        links: Links between its ranks.
        profiles: Profiles of the same modules on other device types, by type name.

    Raises:
        PlanError: Modules or ranks differ, an op precedes its inputs, or memory is too small.
    """
    trace, links = expect("job", job, StageTrace, plan), expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    simulator = DeploymentSimulator(trace, links, plan.devices, plan.batch, profiles)
    step = simulator.step(spread_of(plan, trace))
    for device, needed, room in zip(plan.devices, step.memory, simulator.room, strict=True):
        if needed > room:
            raise PlanError(
                f"device {device.name!r} needs {format_size(needed)} and has {format_size(room)} - at `$.groups`; "
                "place fewer ops or rows there"
            )
    return prediction_of(plan, "step", _timeline(plan, step), step.step_s)


def spread_of(plan: DeploymentPlan, trace: StageTrace) -> Spread:
    """Convert a plan to arrays: one unit per group, under mp one per run of ops with the same owner.

    Raises:
        PlanError: Raised by `lower_deployment`.
    """
    _check_ops(plan, trace)
    numbers, devices = trace.numbers, plan.world_size
    unit, owner, duplicated = (np.full(len(numbers), value, np.int64) for value in (0, -1, 0))
    first: list[NDArray[np.int64]] = []
    rows: list[NDArray[np.int64]] = []
    ways: list[int] = []
    priority: list[int] = []
    for group in plan.groups:
        owners = dict(zip(group.ops, group.owners, strict=False))
        for ops in _units(group):
            unit[[numbers[op] for op in ops]] = len(rows)
            own = np.zeros((2, devices), np.int64)
            for rank, (begin, end) in group.rows_of(ops[0], plan.batch).items():
                own[:, rank] = begin, end - begin
            first.append(own[0])
            rows.append(own[1])
            ways.append(WAYS[group.communication])
            priority.append(group.priority)
        if group.communication == "ps":
            owner[[numbers[op] for op in owners]] = list(owners.values())
        duplicated[[numbers[op] for op in group.duplicated]] = 1
    return Spread(
        unit,
        np.stack(first),
        np.stack(rows),
        np.array(ways, np.int64),
        owner,
        duplicated,
        np.array(priority, np.int64),
    )


def _units(group: DeployedGroup) -> list[list[str]]:
    """Runs of ops that are placed alike."""
    if group.communication != "mp":
        return [list(group.ops)]
    runs = groupby(zip(group.ops, group.owners, strict=True), lambda pair: pair[1])
    return [[op for op, _ in run] for _, run in runs]


def _check_ops(plan: DeploymentPlan, trace: StageTrace) -> None:
    places = {op: place for place, op in enumerate(op for group in plan.groups for op in group.ops)}
    if set(places) != set(trace.numbers):
        more, fewer = sorted(places.keys() - trace.numbers)[:3], sorted(trace.numbers.keys() - places)[:3]
        raise PlanError(
            f"the groups - at `$.groups` - hold {more}, which the job has not, and lack {fewer}; make the plan again "
            "for this job"
        )
    names = [module.name for module in trace.modules]
    for source, target in trace.flows:
        if places[names[source]] > places[names[target]]:
            raise PlanError(
                f"op {names[target]!r} stands before {names[source]!r}, whose output it needs - at `$.groups`; order "
                "ops as the forward pass does"
            )
    for number, group in enumerate(plan.groups):
        for op in group.duplicated:
            if trace.modules[trace.numbers[op]].factored_bytes <= 0:
                raise PlanError(f"op {op!r} has no sufficient factors - at `$.groups[{number}].duplicated`")


def _timeline(plan: DeploymentPlan, step: DeploymentStep) -> Timeline:
    heads = [ops[0] for group in plan.groups for ops in _units(group)]
    spans = [
        Span(
            rank=rank,
            phase=PHASES[step.phase[op]],
            exchange=heads[unit] if (unit := int(step.unit[op])) >= 0 else "all",
            start_s=float(step.run.start[op]),
            end_s=float(step.run.end[op]),
        )
        for op in np.flatnonzero(step.run.end > step.run.start)
        for rank in np.flatnonzero(step.member[op]).tolist()
    ]
    spans.sort(key=lambda span: (span.rank, span.start_s, span.end_s))
    return Timeline(spans=tuple(spans), world_size=plan.world_size)
