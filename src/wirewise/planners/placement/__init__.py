"""Where the tasks of a distributed job run."""

from wirewise.planners.placement.chain import search
from wirewise.planners.placement.checks import faults, host_faults
from wirewise.planners.placement.gnn_tasks import METHODS, plan
from wirewise.planners.placement.problem import PlacementProblem, problem_of
from wirewise.planners.placement.starts import STARTS, colocated, first_fit, scattered, store_affine
from wirewise.planners.placement.volumes import VOLUMES, drawn_rows, expected_rows, from_graph

__all__ = [
    "METHODS",
    "STARTS",
    "VOLUMES",
    "PlacementProblem",
    "colocated",
    "drawn_rows",
    "expected_rows",
    "faults",
    "first_fit",
    "from_graph",
    "host_faults",
    "plan",
    "problem_of",
    "scattered",
    "search",
    "store_affine",
]
