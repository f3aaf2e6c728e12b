"""Checks that a plan from a file still fits its job and hosts."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.arrays import Ints
from wirewise.planners.placement.problem import PlacementProblem
from wirewise.plans import PlacementPlan

__all__ = ["faults", "host_faults"]

_EXACT = 1e-6
"""Share by which a simulated time may differ from the plan's: it is computed in the same way."""


def faults(plan: PlacementPlan, problem: PlacementProblem) -> Iterator[str]:
    """Find reasons why a plan cannot run as recorded: tasks, hosts, capacity, simulated time."""
    try:
        plan.check_tasks(problem.tasks.kinds)
    except PlanError as error:
        yield str(error)
        return
    if wrong := list(host_faults(plan, problem.hosts)):
        yield from wrong
        return
    places = np.array([plan.places[task.name] for task in problem.tasks.tasks], np.int64)
    yield from _place_faults(plan, problem, places)
    yield from _figure_faults(plan, problem, places)


def host_faults(plan: PlacementPlan, hosts: tuple[str, ...]) -> Iterator[str]:
    """Find hosts of the plan that differ from those of a topology, compared in order."""
    if len(hosts) != plan.world_size:
        yield (
            f"plan {plan.planner!r} is for {plan.world_size} hosts, there are {len(hosts)}; make the plan again for "
            "these"
        )
        return
    for number, (own, name) in enumerate(zip(plan.hosts, hosts, strict=True)):
        if own != name:
            yield (
                f"host {number} is {own!r} - at `$.hosts[{number}]`, the topology's is {name!r}; name hosts alike or "
                "make the plan again for these"
            )


def _place_faults(plan: PlacementPlan, problem: PlacementProblem, places: Ints) -> Iterator[str]:
    for task, place, fixed in zip(problem.tasks.tasks, places, problem.fixed, strict=True):
        if fixed not in (-1, place):
            yield (
                f"{task.name} is on host {plan.hosts[place]!r}, the job fixes it on {problem.hosts[fixed]!r}; make "
                "the plan again"
            )
    left = problem.left(places)
    for host, resource in np.argwhere(left < -_EXACT):
        has = problem.capacity[host, resource]
        yield (
            f"host {problem.hosts[host]!r} has {has:g} of {problem.resources[resource]!r}, the tasks that the plan "
            f"places there demand {has - left[host, resource]:g}; make the plan again"
        )


def _figure_faults(plan: PlacementPlan, problem: PlacementProblem, places: Ints) -> Iterator[str]:
    for name in ("iterations", "prefetch"):
        own, job = getattr(plan, name), getattr(problem.tasks, name)
        if own != job:
            yield f"{name} is {own} - at `$.{name}`, the job's is {job}; make the plan again for this job"
            return
    simulated_s = problem.simulator.seconds(places, plan.policy)
    if not isclose(simulated_s, plan.predicted_s, rel_tol=_EXACT):
        yield (
            f"predicted_s is {plan.predicted_s:.6g} - at `$.predicted_s`, simulating the plan gives {simulated_s:.6g}: "
            "flows, times or links are not those that it was made with; make the plan again"
        )
