"""Lowering of placement plans to iterations of mini-batch training."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans.placement import PlacementPlan
from wirewise.sim.flows.simulate import FlowSimulator
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.trace.tasks import TaskSet

__all__ = ["lower_placement"]


def lower_placement(plan: PlacementPlan, job: Any, links: Any) -> Prediction:
    """Simulate all iterations of the tasks; see `predict`."""
    tasks, links = expect("job", job, TaskSet, plan), expect("links", links, Links, plan)
    plan.check_tasks(tasks.kinds)
    same_ranks(plan, links.hosts, "the links have")
    for name in ("iterations", "prefetch"):
        if getattr(plan, name) != getattr(tasks, name):
            raise PlanError(
                f"{name} is {getattr(plan, name)} - at `$.{name}`, the job has {getattr(tasks, name)}; make the plan "
                "again for this job"
            )
    demands = {task.name: task.demand for task in tasks.tasks}
    for number, placed in enumerate(plan.tasks):
        if placed.demand != demands[placed.name]:
            raise PlanError(
                f"task {placed.name!r} demands {placed.demand} - at `$.tasks[{number}].demand`, in the job "
                f"{demands[placed.name]}; make the plan again"
            )
    simulator = FlowSimulator(tasks, links)
    places = np.array([plan.places[task.name] for task in tasks.tasks], np.int64)
    found = simulator.run(places, plan.policy)
    timeline = simulator.timeline(places, found)
    return prediction_of(
        plan, f"run of {tasks.iterations} iterations", timeline, float(found.end_s.max(initial=0.0))
    )
