"""Placement of the tasks of a distributed job."""

from functools import partial

from wirewise.planners.faces import Planner, Problems, face
from wirewise.planners.placement.checks import faults, host_faults
from wirewise.planners.placement.gnn_tasks import METHODS, place, search
from wirewise.planners.placement.problem import PlacementProblem, problem_of
from wirewise.planners.placement.starts import STARTS, first_fit
from wirewise.planners.placement.volumes import VOLUMES, expected_rows, from_graph, sampled_rows
from wirewise.trace.tasks import TaskSet

__all__ = [
    "METHODS",
    "PLANNERS",
    "STARTS",
    "VOLUMES",
    "PlacementProblem",
    "colocated",
    "expected_rows",
    "faults",
    "first_fit",
    "from_graph",
    "gnn_tasks",
    "host_faults",
    "problem_of",
    "sampled_rows",
    "search",
    "store_affine",
]

_PROBLEMS = Problems("tasks of GNN training", PlacementProblem, {TaskSet: problem_of})

PLANNERS: dict[str, Planner] = {name: face(partial(place, name), name, _PROBLEMS) for name in METHODS}
"""Planners by name."""

# The first stands before the module of the same name.
gnn_tasks, colocated, store_affine = (PLANNERS[name] for name in ("gnn-tasks", "colocated", "store-affine"))
